"""Attention whose keys and values may be those of an earlier layer (Gemma 3n and 4).

A layer that borrows attends to the lender's pages. The lender has written its new keys and values
there; they are handed on beside the pages and written once more, the same numbers in the same
places, because every kernel writes before it reads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.layers import Branches, Linear, RmsNorm, UnitNorm
from model_server.models.layers.rope import Rotary
from model_server.models.weights.sharding import HeadSplit, split_heads
from model_server.models.weights.source import RepeatedGroups, Tensor, WeightSource
from model_server.models.weights.weight import WeightForm


class KeysValues(NamedTuple):
    """New keys and values of one layer, rotated and normed."""

    keys: jax.Array  # f32[T, K, Q]
    values: jax.Array  # f32[T, K, Q]


class LentAttention(nnx.Module):
    """Norms queries, keys and, without a scale, values; projects keys only if none are lent."""

    def __init__(
        self,
        shape: AttentionShape,
        prefix: str,
        form: WeightForm,
        *,
        epsilon: float,
        borrows: bool,
        keys_as_values: bool = False,  # values are the keys, before their norm and rotation
        biased: bool = False,
    ) -> None:
        s, self.shape = shape, shape
        self.borrows = borrows
        split = split_heads(s.heads, s.kv_heads, form.layout.shards("heads"))
        parts = ("q",) if borrows else ("q", "k") if keys_as_values else ("q", "k", "v")
        self.projections = Branches(
            [(s.heads if part == "q" else split.kv_heads) * s.head_dim for part in parts],
            s.embed,
            [(split.axis, "embed")] * len(parts),
            [_source(f"{prefix}.{part}_proj.weight", part, s, split) for part in parts],
            form=form,
            biases=[_source(f"{prefix}.{part}_proj.bias", part, s, split) for part in parts]
            if biased
            else None,
        )
        self.q_norm = RmsNorm(s.head_dim, (f"{prefix}.q_norm.weight",), epsilon=epsilon)
        if not borrows:
            self.k_norm = RmsNorm(s.head_dim, (f"{prefix}.k_norm.weight",), epsilon=epsilon)
            self.v_norm = UnitNorm(epsilon)
        self.out = Linear(
            s.embed,
            s.heads * s.head_dim,
            ("embed", split.axis),
            (f"{prefix}.o_proj.weight",),
            form=form,
            bias=(f"{prefix}.o_proj.bias",) if biased else None,
        )

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        rotation: Rotary,
        pages: LayerPages,  # the lender's, if it borrows
        lent: KeysValues | None,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages, KeysValues]:
        """Returns f32[T, D], the pages with the new tokens written, and what can be lent."""
        s = self.shape
        q, *rest = (each.reshape(x.shape[0], -1, s.head_dim) for each in self.projections(x))
        if lent is None:
            keys, values = rest[0], rest[-1]
            lent = KeysValues(rotation(self.k_norm(keys)), self.v_norm(values))
        q = rotation(self.q_norm(q))
        if s.window is None:  # of Gemma 4 layers with a window alone see an image to its end
            batch = replace(batch, block_ahead=None)
        mixed, pages = batch.attend(pages, q, *lent, scale=s.scale, window=s.window)
        return self.out(mixed.reshape(x.shape[0], -1)), pages, lent


def _source(name: str, part: str, shape: AttentionShape, split: HeadSplit) -> WeightSource:
    found = Tensor(name)
    copied = part != "q" and split.copies > 1
    return RepeatedGroups(found, shape.head_dim, split.copies) if copied else found
