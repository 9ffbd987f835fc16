"""Tells a model whether its experts are stored together or one by one, where both are usual.

A family declares its tensors from config.json alone, which does not say it: published files of
Qwen3.5 and Qwen3-VL hold all experts of a layer in two tensors, those saved by transformers or
quantised hold three of each expert.
"""

from __future__ import annotations

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of

_EITHER_WAY = ("qwen3_5_moe_text", "qwen3_vl_moe_text")
_ONE_OF_MANY = ".mlp.experts.0.down_proj.weight"


def with_stored_experts(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint; its config says `experts_apart` if they are stored one by one."""
    if checkpoint.config.get("model_type") not in _EITHER_WAY:
        return checkpoint
    names = checkpoint.names()
    if not any(name.endswith(_ONE_OF_MANY) for name in names):
        return checkpoint
    same = {name: name for name in names}
    return view_of(checkpoint, same, {**checkpoint.config, "experts_apart": True})
