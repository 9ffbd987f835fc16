"""Presents the text part of a vision-language checkpoint as the checkpoint of a text model.

Such a config.json nests the text model's as `text_config`, and its tensors are named
`language_model.model.` or, in some later files, `model.language_model.`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)

# model_type -> the text part's model_type, if its own config does not say it
_TEXT_TYPES = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
# Prefix of the text part's tensors -> prefix in a text model. `language_model.` alone is not
# enough: the head is below it, too.
_PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "lm_head.": "lm_head.",
}
_OTHER_PARTS = (
    *("vision_tower.", "vision_model.", "multi_modal_projector.", "visual."),
    *("audio_tower.", "embed_audio.", "embed_vision."),
)
_OUTER_ONLY = ("text_config", "vision_config", "audio_config", "model_type", "architectures")


def text_part_of(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint, or its text part if it has others. Raises CheckpointError."""
    config = text_config(checkpoint.config)
    if config is checkpoint.config:
        return checkpoint
    names = {_text_name(name): name for name in checkpoint.names() if not _is_other(name)}
    if left_out := [name for name in checkpoint.names() if _is_other(name)]:
        logger.info(
            "loading only the text part; ignoring %d vision tensors such as %s",
            len(left_out),
            left_out[0],
        )
    return view_of(checkpoint, names, config)


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Merge text_config with the outer config.json, which alone has e.g. the end token ids.

    Returns a text model's own config as it is. Raises CheckpointError.
    """
    if "text_config" not in config or config.get("model_type") not in _TEXT_TYPES:
        return config
    inner = config["text_config"]
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"config.json has text_config = {inner!r}; it must be an object")
    outer = {k: v for k, v in config.items() if k not in _OUTER_ONLY and v is not None}
    kind = inner.get("model_type") or _TEXT_TYPES[config["model_type"]]
    return {**inner, **outer, "model_type": kind}


def _is_other(name: str) -> bool:
    return name.removeprefix("model.").startswith(_OTHER_PARTS)


def _text_name(name: str) -> str:
    for prefix, own in _PREFIXES.items():
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return name
