"""Layers of towers whose queries and keys are rotated by row and column."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.layers import Branches, Linear
from model_server.models.layers.rope import Rotary
from model_server.models.media.tower_attention import attend
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

_THETA = 10000.0
_ROPE = ("axial", "default", None)  # kinds of rope, which older files do not name


def axial_theta(keys: ConfigKeys, family: str) -> float:
    """Return the base of the rope over rows and columns. Raises CheckpointError."""
    given = keys.get("rope_parameters", {})
    known = isinstance(given, Mapping) and set(given) <= {"rope_theta", "rope_type"}
    if not known or given.get("rope_type") not in _ROPE:
        raise CheckpointError(
            f"vision_config has rope_parameters = {given!r}; the {family} family supports a "
            "rope_theta and the rope_type axial"
        )
    return float(given.get("rope_theta") or keys.number("rope_theta", _THETA))


class RotatedAttention(nnx.Module):
    """Heads are divided over the devices of the model axis, if evenly; else each computes all."""

    def __init__(self, embed: int, heads: int, sources: AttentionSources, form: WeightForm) -> None:
        axis = "heads" if heads % form.layout.shards("heads") == 0 else None
        self.heads = heads
        self.qkv = Branches(
            [embed] * 3,
            embed,
            [(axis, "embed")] * 3,
            [sources.q, sources.k, sources.v],
            form=form,
            biases=sources.biases,
        )
        self.out = Linear(
            embed, embed, ("embed", axis), sources.out, form=form, bias=sources.out_bias
        )

    def __call__(self, x: jax.Array, rotation: Rotary, lengths: jax.Array) -> jax.Array:
        """Maps f32[S * P, D] to the same; lengths: i32[S]."""
        size, dtype = x.shape[-1] // self.heads, self.out.kernel.get_value().dtype
        q, k, v = (part.reshape(x.shape[0], self.heads, size) for part in self.qkv(x))
        q, k, v = (
            part.astype(dtype).reshape(lengths.shape[0], -1, self.heads, size)
            for part in (rotation(q), rotation(k), v)
        )
        return self.out(attend(q, k, v, lengths).reshape(x.shape))


class RotatedLayer(nnx.Module):
    """x + attention(norm(x)), then x + ffw(norm(x))."""

    def __init__(
        self,
        before_attention: nnx.Module,
        attention: RotatedAttention,
        before_ffw: nnx.Module,
        ffw: nnx.Module,
    ) -> None:
        self.before_attention = before_attention
        self.attention = attention
        self.before_ffw = before_ffw
        self.ffw = ffw

    def __call__(self, x: jax.Array, rotation: Rotary, lengths: jax.Array) -> jax.Array:
        x = x + self.attention(self.before_attention(x), rotation, lengths)
        return x + self.ffw(self.before_ffw(x))
