"""Layers that attend to whole blocks of tokens, chosen by the means of the blocks' keys.

Source: transformers' `models/qwen4_exp`. To the engine such a layer is two: one caches the keys for
choosing, the other attends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.kernels.chosen import Chosen
from model_server.kernels.chosen_blocks import WholeBlocks, choose_blocks
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import HeadShape, LayerPages
from model_server.models.families.indexed.minimax_m3 import BlockAttention
from model_server.models.layers.gated_streams import StreamMixer, StreamsFfw, added
from model_server.models.layers.layers import Linear, RmsNorm, sum_in_order
from model_server.models.layers.rope import Rope, Rotary
from model_server.models.weights.weight import WeightForm


class MadeFor(NamedTuple):
    """Output of a `BlockChooser`, for the layer behind it, which attends."""

    chosen: Chosen
    seen: jax.Array  # f32[T, D]
    weights: jax.Array  # f32[T, N]


# Positions of images are triples, which a block's first token must tell when its key is made, and
# which may have been computed long before. So they are cached behind its key: a largest number,
# then digits as parts of it, few enough to survive in any form of the cache.
_DIGIT_BITS, _DIGITS = 3, 8  # positions below 2**24, more than any model has
_PLACE_NUMBERS = 1 + 3 * _DIGITS


def with_places(keys: jax.Array, positions: jax.Array) -> jax.Array:
    """Append positions i32[T] or i32[3, T] to keys f32[T, 1, J]."""
    triples = jnp.broadcast_to(positions, (3, keys.shape[0])).T  # [T, 3]
    shifts = np.arange(_DIGITS) * _DIGIT_BITS
    digits = (triples[..., None] >> shifts[None, None]) & (2**_DIGIT_BITS - 1)
    parts = digits.reshape(len(keys), 1, -1).astype(jnp.float32) / (2**_DIGIT_BITS - 1)
    most = jnp.maximum(jnp.max(jnp.abs(keys), axis=-1, keepdims=True), 1e-6)
    return jnp.concatenate([keys, most, parts * most], axis=-1)


def places_of(numbers: jax.Array) -> jax.Array:
    """Return positions i32[3, M] from what `with_places` appended, f32[M, _PLACE_NUMBERS]."""
    parts = numbers[:, 1:] / jnp.maximum(numbers[:, :1], 1e-30)
    digits = jnp.round(parts * (2**_DIGIT_BITS - 1)).astype(jnp.int32).reshape(-1, 3, _DIGITS)
    shifts = np.arange(_DIGITS) * _DIGIT_BITS
    return jnp.sum(digits << shifts[None, None], axis=-1).T


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooserShape:
    embed: int
    heads: int
    dim: int
    size: int  # tokens of a block
    most: int  # blocks that a query sees
    epsilon: float
    placed: bool  # keys are cached with their positions
    rope: Rope

    @property
    def cached(self) -> HeadShape:
        return HeadShape(1, self.dim + _PLACE_NUMBERS * self.placed, 0)


class BlockChooser(nnx.Module):
    """Reads the streams for the layer behind it, and scores blocks by the mean of their keys."""

    def __init__(
        self, shape: ChooserShape, mixer: StreamMixer, name: str, form: WeightForm
    ) -> None:
        self.shape, self.mixer = shape, mixer
        source = (f"{name}.index_qk_proj.weight",)
        outputs = (shape.heads + 1) * shape.dim
        self.both = Linear(outputs, shape.embed, (None, "embed"), source, form=form)
        self.query_norm, self.key_norm = (
            RmsNorm(
                shape.dim,
                (f"{name}.{part}_layernorm.weight",),
                epsilon=shape.epsilon,
                plus_one=True,
            )
            for part in "qk"
        )

    def __call__(
        self,
        x: jax.Array,  # f32[T, N D]
        tokens: jax.Array,
        positions: jax.Array,  # i32[T] or i32[3, T]
        before: MadeFor | None,
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, MadeFor, LayerPages]:
        """Returns the streams as they are, and the pages with the new tokens' keys written."""
        s = self.shape
        seen, weights = self.mixer.read(x)
        both = self.both(seen).reshape(-1, s.heads + 1, s.dim)
        queries, keys = rotation(self.query_norm.of_all(both[:, :-1])), both[:, -1:]
        if s.placed:
            keys = with_places(keys, positions)
        blocks = WholeBlocks(s.size, s.most, self._pooled)
        chosen, pages = choose_blocks(batch, pages, queries, keys, blocks)
        return x, MadeFor(chosen, seen, weights), pages

    def _pooled(self, keys: jax.Array, first: jax.Array) -> jax.Array:
        """As `WholeBlocks.pooled`: the mean, normed, and rotated as the first token of a block."""
        s, (rows, count) = self.shape, keys.shape[:2]
        normed = self.key_norm.of_all(sum_in_order(keys[..., : s.dim], axis=2) / s.size)
        at = jnp.broadcast_to(first[None], (rows, count)).reshape(-1)
        if s.placed:
            at = places_of(keys[:, :, 0, s.dim :].reshape(rows * count, -1))
        return s.rope.at(at)(normed.reshape(-1, 1, s.dim)).reshape(rows, count, s.dim)


class AttendingLayer(nnx.Module):
    """A layer that attends to the blocks which the `BlockChooser` before it chose."""

    def __init__(self, attention: BlockAttention, ffw: StreamsFfw) -> None:
        self.attention, self.ffw = attention, ffw

    def __call__(
        self,
        x: jax.Array,  # f32[T, N D]
        tokens: jax.Array,
        positions: jax.Array,
        before: MadeFor,
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, None, LayerPages]:
        mixed, pages = self.attention.of_chosen(before.seen, before.chosen, rotation, pages, batch)
        return self.ffw(added(x, mixed, before.weights)), None, pages
