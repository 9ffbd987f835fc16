"""Presents the text part of a vision-language checkpoint as the checkpoint of a text model.

Such a config.json nests the text model's as `text_config`, and its tensors are named
`language_model.model.` or, in some later files, `model.language_model.`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region
from sax.errors import CheckpointError

if TYPE_CHECKING:
    from model_server.checkpoints.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

# model_type -> the text part's model_type
_TEXT_TYPES = {"gemma3": "gemma3_text"}
# Prefix of the text part's tensors -> prefix in a text model. `language_model.` alone is not
# enough: the head is below it, too.
_PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "lm_head.": "lm_head.",
}
_OTHER_PARTS = ("vision_tower.", "multi_modal_projector.")
_OUTER_ONLY = ("text_config", "vision_config", "model_type", "architectures")


def text_part_of(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint, or its text part if it has others. Raises CheckpointError."""
    config = checkpoint.config
    if "text_config" not in config or config.get("model_type") not in _TEXT_TYPES:
        return checkpoint
    part: Any = TextPart(checkpoint)
    return part


class TextPart:
    """A checkpoint without its vision parts."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.config = _text_config(checkpoint.config)
        stored = [name for name in checkpoint.names() if not _is_other(name)]
        self._stored = {_text_name(name): name for name in stored}
        self.left_out = [name for name in checkpoint.names() if _is_other(name)]
        if self.left_out:
            logger.info(
                "loading only the text part; ignoring %d vision tensors such as %s",
                len(self.left_out),
                self.left_out[0],
            )

    def names(self) -> list[str]:
        return list(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._checkpoint.shape(self._found(name))

    def dtype(self, name: str) -> str:
        return self._checkpoint.dtype(self._found(name))

    def nbytes(self, name: str) -> int:
        return self._checkpoint.nbytes(self._found(name))

    def read(self, name: str, region: Region | None = None, out: Any = None) -> Any:
        return self._checkpoint.read(self._found(name), region, out)

    def packing(self, name: str) -> Packing | None:
        return self._checkpoint.packing(self._found(name))

    def read_packed(self, name: str, region: Region | None = None) -> PackedBlocks:
        return self._checkpoint.read_packed(self._found(name), region)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)

    def _found(self, name: str) -> str:
        return self._stored.get(name, name)


def _text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Merge text_config with the outer config.json, which alone has e.g. the end token ids."""
    inner = config["text_config"]
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"config.json has text_config = {inner!r}; it must be an object")
    outer = {k: v for k, v in config.items() if k not in _OUTER_ONLY and v is not None}
    own = {"model_type": _TEXT_TYPES[config["model_type"]]}
    return {**inner, **outer, **own}


def _is_other(name: str) -> bool:
    return name.removeprefix("model.").startswith(_OTHER_PARTS)


def _text_name(name: str) -> str:
    for prefix, own in _PREFIXES.items():
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return name
