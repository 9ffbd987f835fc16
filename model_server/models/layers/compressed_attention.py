"""Attention to a window of tokens and to entries compressed from all tokens (`kernels/compressed`).

Source: DeepSeek-AI 2026, "DeepSeek-V4", section 2.3. All heads share one vector of each token,
which is key and value at once and rotated as a key; what a head finds is turned back by its query's
position, so that it depends on distances alone. Queries see all entries, or those that an indexer
of few small heads scores highest, which has compressed keys of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from model_server.kernels.chosen import Choosing
from model_server.kernels.compressed import Compression, EntryParts, compressed
from model_server.kernels.cpu.tiles import dense_product
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import HeadShape, LayerPages
from model_server.kernels.row_sums import weighted_sum
from model_server.models.layers.layers import (
    EVERY_ROW,
    Linear,
    LiveRows,
    RmsNorm,
    live_of,
    unit_rows,
)
from model_server.models.layers.rope import Rope, Rotary
from model_server.models.weights.sharding import split_heads
from model_server.models.weights.source import Stacked, Tensor, cut
from model_server.models.weights.weight import WeightForm, weight


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryShape:
    """Sizes of the entries of a layer, and of the indexer that chooses among them."""

    rate: int  # tokens that an entry stands for
    overlaps: bool  # it is made of the tokens of the one before, too
    heads: int = 0  # of the indexer; 0: queries see all entries
    dim: int = 0  # of the indexer's heads
    most: int = 0  # entries that a query sees

    @property
    def seen(self) -> int:
        """Tokens that an entry is made of."""
        return self.rate * (1 + self.overlaps)

    @property
    def parts(self) -> int:
        """Numbers that a token gives to an entry, for each number of it: values and scores."""
        return 2 * (1 + self.overlaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedShape:
    embed: int
    heads: int
    head_dim: int
    query_latent: int
    groups: int  # of what heads find, which is projected back in two steps
    group_latent: int
    window: int  # tokens that a query sees as they are
    epsilon: float
    entries: EntryShape | None  # None: it sees no others

    @property
    def near(self) -> HeadShape:
        """What is cached of each token of the window."""
        entries = self.entries
        parts = entries.parts * (self.head_dim + entries.dim) if entries else 0
        return HeadShape(1, self.head_dim, parts)

    @property
    def lasting(self) -> HeadShape | None:
        """What is cached of each entry."""
        entries = self.entries
        return entries and HeadShape(1, self.head_dim + entries.dim, 0, entries.rate)

    @property
    def reach(self) -> int:
        """Tokens that are kept as they are, to attend to or to make entries of."""
        return max(self.window, self.entries.seen if self.entries else 0)


class Compressor(nnx.Module):
    """Makes an entry of several tokens: values weighted by a softmax of scores, number by number.

    Of overlapping ones the first half of what a token gives is for the next entry.
    """

    def __init__(
        self,
        shape: EntryShape,
        embed: int,
        size: int,  # numbers of an entry
        prefix: str,
        form: WeightForm,
        *,
        epsilon: float,
        rope: Rope,  # of the last numbers, by the position of the first token
    ) -> None:
        self.shape, self.size, self.rope = shape, size, rope
        wide = size * shape.parts // 2

        def linear(part: str) -> Linear:
            return Linear(
                wide, embed, (None, "embed"), (f"{prefix}.{part}_proj.weight",), form=form
            )

        self.values, self.scores = linear("kv"), linear("gate")
        bias = (f"{prefix}.position_bias",)
        self.bias = weight((shape.rate, wide), (None, None), bias, dtype=jnp.float32, spread=0.02)
        self.norm = RmsNorm(size, (f"{prefix}.kv_norm.weight",), epsilon=epsilon)

    def parts(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, D] to what tokens give: values and scores, f32[T, 1, W]."""
        return jnp.concatenate([self.values(x), self.scores(x)], axis=-1)[:, None]

    def entries(self, parts: EntryParts) -> jax.Array:
        """Return f32[M, size]."""
        values, scores = jnp.split(parts.numbers, 2, axis=-1)
        overlaps, size, rate = self.shape.overlaps, self.size, self.shape.rate
        bias = self.bias[...]
        if overlaps:
            values, scores = (
                jnp.concatenate([each[:, :rate, :size], each[:, rate:, size:]], axis=1)
                for each in (values, scores)
            )
            bias = jnp.concatenate([bias[:, :size], bias[:, size:]])
        scores = jnp.where(parts.there[..., None], scores + bias[None], -1e30)
        values = jnp.where(parts.there[..., None], values, 0.0)
        made = weighted_sum(scores, values, axis=1)
        return turned_last(self.norm.of_all(made)[:, None], self.rope.at(parts.first))[:, 0]


class EntryIndexer(nnx.Module):
    """Makes the vectors by which queries choose entries."""

    def __init__(
        self, shape: CompressedShape, entries: EntryShape, prefix: str, form: WeightForm, rope: Rope
    ) -> None:
        self.heads, self.dim = entries.heads, entries.dim
        self.compressor = Compressor(
            entries, shape.embed, entries.dim, prefix, form, epsilon=shape.epsilon, rope=rope
        )

        def linear(name: str, outputs: int, inputs: int) -> Linear:
            source = (f"{prefix}.{name}.weight",)
            return Linear(outputs, inputs, (None, None), source, form=form)

        self.queries = linear("q_b_proj", entries.heads * entries.dim, shape.query_latent)
        self.weights = linear("scorer.weights_proj", entries.heads, shape.embed)

    def choosing(self, x: jax.Array, narrow: jax.Array, rotation: Rotary) -> Choosing:
        """Map the residual stream f32[T, D] and the queries' latent f32[T, R]."""
        queries = self.queries(narrow).reshape(-1, self.heads, self.dim)
        queries = turned_last(queries, rotation) * self.dim**-0.5
        return Choosing(queries, self.weights(x) * self.heads**-0.5)


class CompressedAttention(nnx.Module):
    """Attention to near tokens and to entries."""

    def __init__(
        self, shape: CompressedShape, prefix: str, form: WeightForm, *, rope: Rope
    ) -> None:
        s, self.shape = shape, shape
        shards = form.layout.shards("heads")
        axis = split_heads(s.heads, s.heads, shards).axis
        of_groups = split_heads(s.groups, s.groups, shards).axis

        def linear(name: str, outputs: int, inputs: int, axes: tuple[Any, Any]) -> Linear:
            return Linear(outputs, inputs, axes, (f"{prefix}.{name}.weight",), form=form)

        def norm(name: str, size: int) -> RmsNorm:
            return RmsNorm(size, (f"{prefix}.{name}.weight",), epsilon=s.epsilon)

        self.query_down = linear("q_a_proj", s.query_latent, s.embed, (None, "embed"))
        self.query_norm = norm("q_a_norm", s.query_latent)
        self.queries = linear("q_b_proj", s.heads * s.head_dim, s.query_latent, (axis, None))
        self.keys = linear("kv_proj", s.head_dim, s.embed, (None, "embed"))
        self.key_norm = norm("kv_norm", s.head_dim)
        self.sinks = weight(
            (s.heads,), (axis,), (f"{prefix}.sinks",), dtype=jnp.float32, spread=0.0
        )
        rows, inputs = s.group_latent, s.heads * s.head_dim // s.groups
        together = Tensor(f"{prefix}.o_a_proj.weight")
        by_group = [
            cut(together, first, first + rows, of=s.groups * rows)
            for first in range(0, s.groups * rows, rows)
        ]
        # Each group of heads has a matrix of its own: not quantised, as those of latents.
        self.narrow = weight(
            (s.groups, rows, inputs),
            (of_groups, None, None),
            Stacked(tuple(by_group)),
            dtype=form.dtype,
            spread=0.02,
        )
        self.out = linear("o_b_proj", s.embed, s.groups * rows, ("embed", of_groups))
        self.live: LiveRows = nnx.data(None)
        self.compressor = self.indexer = nnx.data(None)
        if s.entries is not None:
            name = f"{prefix}.compressor"
            self.compressor = Compressor(
                s.entries, s.embed, s.head_dim, name, form, epsilon=s.epsilon, rope=rope
            )
            if s.entries.heads:
                self.indexer = EntryIndexer(s, s.entries, f"{name}.indexer", form, rope)

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        rotation: Rotary,
        near: LayerPages,
        lasting: LayerPages | None,  # None: it has no entries
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages, LayerPages | None]:
        """Returns f32[T, D] and the pages with the new tokens and entries written."""
        s, entries = self.shape, self.shape.entries
        narrow = self.query_norm(self.query_down(x))
        queries = self.queries(narrow).reshape(-1, s.head_dim)
        live = None if live_of(self) is None else EVERY_ROW
        queries = unit_rows(queries, s.epsilon, live).reshape(-1, s.heads, s.head_dim)
        keys = turned_last(self.key_norm(self.keys(x))[:, None], rotation)
        rate, most = (entries.rate, entries.most) if entries else (1, 0)
        pages = compressed(batch, near, lasting, keys, self._parts(x), rate)
        if entries is not None:
            pages = pages.with_entries(Compression(rate, entries.seen), self._entries)
        indexer = self.indexer
        mixed = pages.attend(
            turned_last(queries, rotation),
            None if indexer is None else indexer.choosing(x, narrow, rotation),
            rate=rate,
            most=most,
            window=s.window,
            scale=s.head_dim**-0.5,
            sinks=self.sinks[...],
        )
        back = replace(rotation, sin=-rotation.sin)
        made = self._projected(turned_last(mixed, back))
        if pages.passing:
            return made, near, lasting
        return made, pages.near, pages.lasting

    def _parts(self, x: jax.Array) -> jax.Array | None:
        """f32[T, 1, W]: what entries, and those of the indexer, are made of."""
        if self.compressor is None:
            return None
        parts = self.compressor.parts(x)
        if self.indexer is None:
            return parts
        return jnp.concatenate([parts, self.indexer.compressor.parts(x)], axis=-1)

    def _entries(self, parts: EntryParts) -> jax.Array:
        """f32[M, Q + I]: entries and the indexer's keys of them."""
        assert self.compressor is not None, "it makes entries"
        if self.indexer is None:
            return self.compressor.entries(parts)
        wide = self.shape.head_dim * self.compressor.shape.parts
        own, others = jnp.split(parts.numbers, [wide], axis=-1)
        made = self.compressor.entries(parts._replace(numbers=own))
        keys = self.indexer.compressor.entries(parts._replace(numbers=others))
        return jnp.concatenate([made, keys], axis=-1)

    def _projected(self, mixed: jax.Array) -> jax.Array:
        """Map what the heads found, f32[T, H, Q], to f32[T, D]."""
        grouped, kernel = mixed.reshape(len(mixed), self.shape.groups, -1), self.narrow[...]
        live = live_of(self)
        if live is not None:
            made = dense_product(grouped, kernel, live)
        else:
            seen = grouped.astype(kernel.dtype)
            form = "tgk,grk->tgr"
            made = jnp.einsum(form, seen, kernel, preferred_element_type=jnp.float32)
        return self.out(made.reshape(len(mixed), -1))


def turned_last(x: jax.Array, rotation: Rotary) -> jax.Array:
    """Rotate the last numbers of each head of f32[T, heads, Q]."""
    plain, turning = jnp.split(x, [x.shape[-1] - 2 * rotation.cos.shape[-1]], axis=-1)
    return lax.concatenate([plain, rotation(turning)], 2)
