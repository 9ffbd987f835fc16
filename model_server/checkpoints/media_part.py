"""Presents what sees or hears in a multimodal checkpoint: its tensors, and how images are prepared.

The text part of such a checkpoint is `text_part`'s. In its config, `vision_config` sizes the part
that sees, and `preprocessor_config` is the content of the file beside it that says how images are
resized and scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import CheckpointView, view_of
from model_server.checkpoints.json_file import read_json
from sax.errors import CheckpointError

VISION, PREPROCESSOR = "vision_config", "preprocessor_config"
FILE, NEWER_FILE = "preprocessor_config.json", "processor_config.json"
_IN_NEWER_FILE = "image_processor"  # beside the settings of what writes the prompts
_PARTS = ("vision_tower.", "vision_model.", "multi_modal_projector.", "visual.")
# Prefix in published files -> as transformers 5 writes it.
_DEEPER = {"vision_tower.vision_model.": "vision_tower."}


def media_part_of(checkpoint: Checkpoint) -> Checkpoint | None:
    """Return the tensors of what sees, without a leading `model.`; None: there are none.

    checkpoint: as it was opened, or a view of it such as its text part.
    """
    opened = checkpoint.opened if isinstance(checkpoint, CheckpointView) else checkpoint
    names = {_own_name(name): name for name in opened.names() if is_media(name)}
    return view_of(opened, names, checkpoint.config) if names else None


def is_media(name: str) -> bool:
    """Return True for the name of a tensor of what sees."""
    return name.removeprefix("model.").startswith(_PARTS)


def without_media(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json without what sizes the part that sees."""
    return {key: value for key, value in config.items() if key not in (VISION, PREPROCESSOR)}


def with_preprocessor(config: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Add what the file beside config.json says of images, if there is one.

    Raises CheckpointError for a file that is no JSON object, or holds something else there.
    """
    given = _preprocessor(folder) if folder is not None else None
    return dict(config) if given is None else {**config, PREPROCESSOR: given}


def _preprocessor(folder: Path) -> Mapping[str, Any] | None:
    if (folder / FILE).exists():
        return read_json(folder / FILE)
    if not (folder / NEWER_FILE).exists():
        return None
    given = read_json(folder / NEWER_FILE).get(_IN_NEWER_FILE)
    if given is not None and not isinstance(given, Mapping):
        raise CheckpointError(
            f"{NEWER_FILE} has {_IN_NEWER_FILE} = {given!r}; supported: an object"
        )
    return given


def _own_name(name: str) -> str:
    own = name.removeprefix("model.")
    for prefix, written in _DEEPER.items():
        if own.startswith(prefix):
            return written + own.removeprefix(prefix)
    return own
