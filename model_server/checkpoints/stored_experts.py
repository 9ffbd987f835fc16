"""Tells a model how its experts are stored, where more than one way is usual.

A family declares its tensors from config.json alone, which does not say it: published files of
Qwen3.5 and Qwen3-VL hold all experts of a layer in two tensors, those saved by transformers or
quantised may hold three of each expert. Qwen3-VL's two are published as [in, out], and saved by
transformers as [out, in].
"""

from __future__ import annotations

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of

_EITHER_WAY = ("qwen3_5_moe_text", "qwen3_vl_moe_text")
_TURNED = ("qwen3_vl_moe_text",)  # as published
_ONE_OF_MANY = ".mlp.experts.0.down_proj.weight"
_ALL = ".mlp.experts.down_proj"


def with_stored_experts(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint; its config says `experts_apart` if they are stored one by one, and
    `experts_upright` if they are stored together and not as published.
    """
    kind = checkpoint.config.get("model_type")
    if kind not in _EITHER_WAY:
        return checkpoint
    names = checkpoint.names()
    if any(name.endswith(_ONE_OF_MANY) for name in names):
        return _saying(checkpoint, "experts_apart")
    if kind in _TURNED and _upright(checkpoint):
        return _saying(checkpoint, "experts_upright")
    return checkpoint


def _saying(checkpoint: Checkpoint, key: str) -> Checkpoint:
    same = {name: name for name in checkpoint.names()}
    return view_of(checkpoint, same, {**checkpoint.config, key: True})


def _upright(checkpoint: Checkpoint) -> bool:
    """Return True if matrices [E, D, F] are stored where [E, F, D] are published."""
    sizes = (checkpoint.config.get(key) for key in ("hidden_size", "moe_intermediate_size"))
    stored = next((name for name in checkpoint.names() if name.endswith(_ALL)), None)
    embed, ffw = sizes
    return stored is not None and embed != ffw and checkpoint.shape(stored)[1:] == (embed, ffw)
