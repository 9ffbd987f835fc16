"""Names of tensors as checkpoints of several years have them."""

from __future__ import annotations


def later(name: str) -> str:
    """As transformers 5 holds a model with image input in memory: all of it is below `model.`."""
    parts = {
        "language_model.model.": "model.language_model.",
        "language_model.lm_head.": "lm_head.",
    }
    parts |= {part: f"model.{part}" for part in ("vision_tower.", "multi_modal_projector.")}
    found = next((part for part in parts if name.startswith(part)), "")
    return parts.get(found, "") + name.removeprefix(found)
