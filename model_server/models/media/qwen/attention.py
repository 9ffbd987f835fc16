"""Attention among the patches of an image: all of them, or those of a window."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.layers.layers import Branches, Linear
from model_server.models.layers.rope import Rotary
from model_server.models.media.tower_attention import attend
from model_server.models.weights.sharding import split_heads
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm

_UNSEEN = -1e30


class PatchAttention(nnx.Module):
    """Bidirectional attention whose queries and keys are rotated by row and column."""

    def __init__(
        self, embed: int, heads: int, name: str, form: WeightForm, *, window: int | None
    ) -> None:
        """window: patches of a group at most, which lie next to each other; None: all see all."""
        self.heads, self.window = heads, window
        axis = split_heads(heads, heads, form.layout.shards("heads")).axis
        kernel, bias = (Tensor(f"{name}.qkv.{part}") for part in ("weight", "bias"))
        ends = [(at * embed, (at + 1) * embed) for at in range(3)]
        self.qkv = Branches(
            [embed] * 3,
            embed,
            [(axis, "embed")] * 3,
            [cut(kernel, *each, of=3 * embed) for each in ends],
            form=form,
            biases=[cut(bias, *each, of=3 * embed) for each in ends],
        )
        self.out = Linear(
            embed,
            embed,
            ("embed", axis),
            (f"{name}.proj.weight",),
            form=form,
            bias=(f"{name}.proj.bias",),
        )

    def __call__(self, x: jax.Array, rotation: Rotary, groups: jax.Array) -> jax.Array:
        """Maps f32[S * P, D] to the same; groups: i32[S, P], patches see those of their own.

        They ascend where there are windows; -1: padding.
        """
        images, size = groups.shape[0], x.shape[-1] // self.heads
        dtype = self.out.kernel.get_value().dtype
        q, k, v = (part.reshape(-1, self.heads, size) for part in self.qkv(x))
        q, k, v = (
            part.reshape(images, -1, self.heads, size).astype(dtype)
            for part in (rotation(q), rotation(k), v)
        )
        if self.window is None:
            mixed = attend(q, k, v, (groups >= 0).sum(1))
        else:
            mixed = in_windows(q, k, v, groups, self.window)
        return self.out(mixed.reshape(x.shape))


def in_windows(
    q: jax.Array, k: jax.Array, v: jax.Array, groups: jax.Array, window: int
) -> jax.Array:
    """f32[S, P, H, Q], each patch of its own group alone, which has at most `window`.

    Groups lie one after the other, so that a block of `window` queries sees nothing beyond the
    blocks before and after it.
    """
    images, patches, heads, size = q.shape
    count = -(-patches // window)
    rest = count * window - patches

    def blocks(x: jax.Array, fill: int) -> jax.Array:
        ends = ((0, 0), (0, rest), *(((0, 0),) * (x.ndim - 2)))
        return jnp.pad(x, ends, constant_values=fill).reshape(images, count, window, *x.shape[2:])

    def near(x: jax.Array, fill: int) -> jax.Array:
        made = blocks(x, fill)
        ends = ((0, 0), (1, 1), *(((0, 0),) * (made.ndim - 2)))
        wide = jnp.pad(made, ends, constant_values=fill)
        return jnp.concatenate([wide[:, :-2], made, wide[:, 2:]], axis=2)

    seen = blocks(groups, -1)[..., :, None] == near(groups, -1)[..., None, :]
    made = _attended(_flat(blocks(q, 0)), _flat(near(k, 0)), _flat(near(v, 0)), _flat(seen))
    return made.reshape(images, count * window, heads, size)[:, :patches]


def _flat(x: jax.Array) -> jax.Array:
    """[S * N, ...] of [S, N, ...]."""
    return x.reshape(-1, *x.shape[2:])


def _attended(q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> jax.Array:
    """f32[N, T, H, Q]; seen: bool[N, T, S]."""
    scores = jnp.einsum("nthq,nshq->nhts", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(seen[:, None], scores / math.sqrt(q.shape[-1]), _UNSEEN)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("nhts,nshq->nthq", weights, v, preferred_element_type=jnp.float32)
