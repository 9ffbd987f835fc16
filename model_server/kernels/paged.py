"""Inputs of one step's attention, and the interface of the kernels.

They are the same for every layer: models pass them through untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from model_server.kernels.pages import LayerPages, Shapes, key_major_shapes, write
from model_server.kernels.sequence_sharding import SequenceSharding
from model_server.kernels.states import (
    Advance,
    State,
    StatePlaces,
    advance,
    advance_whole,
    places_of,
)


class KernelRefusal(ValueError):
    """Raised when a kernel does not support the given shapes; the message says what to change."""


class NewTokens(NamedTuple):
    """Vectors of the flat batch in one layer."""

    q: jax.Array  # f32[T, H, Q]
    k: jax.Array  # f32[T, K, Q]
    v: jax.Array | None  # f32[T, K, W]; None: the keys double as values


class Scores(NamedTuple):
    """Arithmetic of one layer's scores; keyword arguments of every kernel that reads pages."""

    scale: float
    softcap: float | None
    window: int | None  # tokens each query sees, itself included; None: all
    # f32[H]: a score in each head's softmax that takes weight from the tokens and gives nothing
    sinks: jax.Array | None = None
    chunk: int | None = None  # each query sees its own chunk of so many tokens; None: no chunks


def first_seen(limits: jax.Array, window: int | None, chunk: int | None) -> jax.Array:
    """Return the first cached token that queries with these limits see; it may be below 0."""
    if chunk is not None:
        return jnp.maximum(limits - 1, 0) // chunk * chunk
    return jnp.zeros_like(limits) if window is None else limits - window


class Kernel(Protocol):
    """Paged attention for one platform, and its page layout. Hashable: part of programs."""

    @property
    def shapes(self) -> Shapes: ...

    def attend(
        self, batch: PagedBatch, layer: LayerPages, new: NewTokens, scores: Scores
    ) -> tuple[jax.Array, LayerPages]:
        """As `PagedBatch.attend`."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class WindowTables:
    """Places of a batch's tokens in the pages that layers with a window have to themselves."""

    pages: jax.Array  # i32[T], as in PagedBatch
    decode_tables: jax.Array  # i32[D, S/G]; arbitrary before the window
    block_tables: jax.Array  # i32[N, S/G]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Pages of the tokens in one flat batch: D decode rows, then N blocks of C prompt tokens."""

    pages: jax.Array  # i32[T]: page each new token is written to
    offsets: jax.Array  # i32[T]: its offset in that page
    decode_tables: jax.Array  # i32[D, S/G]
    decode_limits: jax.Array  # i32[D, 1]: cached tokens each query sees, itself included
    block_tables: jax.Array  # i32[N, S/G]
    block_limits: jax.Array  # i32[N, C]
    kernel: Kernel = field(metadata={"static": True})
    split: SequenceSharding | None = field(default=None, metadata={"static": True})
    window_tables: WindowTables | None = None  # None: all layers have pages in common
    states: StatePlaces | None = None  # None: no layer keeps a state
    # i32[N, C]: tokens behind itself that each query of a block sees, too; they are written by the
    # same step. None: none sees any. Windows count from the query's own place.
    block_ahead: jax.Array | None = None
    # Tokens, at least, of each run of such queries that see each other
    least_run: int = field(default=1, metadata={"static": True})

    def with_states(self, page_size: int, draft_pages: jax.Array | None = None) -> PagedBatch:
        """Return the batch with the places of the states that recurrent layers keep.

        Arguments are those of `states.places_of`.
        """
        of = self.in_windows()
        tables = of.decode_tables, of.decode_limits, of.block_tables, of.block_limits
        return replace(self, states=places_of(*tables, page_size, draft_pages))

    def divided(self, x: jax.Array) -> jax.Array:
        """Constrain [T, D] to the row sharding used between layers."""
        return x if self.split is None else self.split.rows(x)

    def attend(
        self,
        layer: LayerPages,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array | None,
        *,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        sinks: jax.Array | None = None,
        chunk: int | None = None,
    ) -> tuple[jax.Array, LayerPages]:
        """Write the new keys and values, then attend to the cached ones. Returns f32[T, H, W].

        Arguments are those of `NewTokens` and `Scores`.
        """
        batch = self if window is None and chunk is None else self.in_windows()
        scores = Scores(scale, softcap, window, sinks, chunk)
        return self.kernel.attend(batch, layer, NewTokens(q, k, v), scores)

    def advance(
        self, held: State, blank: State, inputs: Any, step: Advance
    ) -> tuple[jax.Array, State]:
        """Run a recurrence over the tokens; returns the outputs [T, ...] and the states.

        Arguments are those of `states.advance`. Whole inputs begin blank and leave nothing.
        """
        counts = jnp.sum(self.block_limits > 0, axis=1)
        if self.split is not None:
            inputs = jax.tree.map(self.split.gathered, inputs)
        if self.states is None:
            return advance_whole(blank, inputs, counts, step), held
        return advance(held, self.states, blank, inputs, counts, step, self.kernel)

    def in_windows(self) -> PagedBatch:
        """Return the batch by the pages of layers with a window."""
        if self.window_tables is None:
            return self
        places = {
            each.name: getattr(self.window_tables, each.name) for each in fields(self.window_tables)
        }
        return replace(self, window_tables=None, **places)


class SeenPages(NamedTuple):
    """Pages of N sequences, and what C queries of each see of them."""

    layer: LayerPages
    tables: jax.Array  # i32[N, S/G]
    limits: jax.Array  # i32[N, C]
    window: int | None = None
    # bool[N, C, S]: the tokens each query attends to, or bool[N, J, C, S]: by groups of its heads;
    # None: all
    chosen: jax.Array | None = None


class PageReading(Protocol):
    """Reads pages whose keys are transposed. `xla` has one for every platform."""

    def attention(
        self,
        q: jax.Array,  # f32[N, C, H, Q]: compared with the first Q numbers of a key
        seen: Sequence[SeenPages],
        *,
        scale: float,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        """Return f32[N, C, H, W], mixed of all these pages by one softmax."""
        ...

    def scores(
        self,
        pages: SeenPages,
        queries: jax.Array,  # f32[N, C, J, I]: compared with the last I numbers of a key
        weights: jax.Array | None,  # f32[N, C, J]
    ) -> jax.Array:
        """Return f32[N, C, S]: relu(query · key), weighted and added up; -inf for unseen tokens.

        Without weights f32[N, C, J, S]: query · key.
        """
        ...


# q f32[N, C, H, Q], the layer's pages, tables i32[N, S/G], limits i32[N, C] -> f32[N, C, H, W];
# every implementation equals reference.paged_attention.
ReadPages = Callable[..., jax.Array]


@dataclass(frozen=True, slots=True)
class WriteThenRead:
    """A kernel that only reads pages, after XLA has written them; keys are stored transposed."""

    read: ReadPages

    @property
    def shapes(self) -> Shapes:
        return key_major_shapes

    def attend(
        self, batch: PagedBatch, layer: LayerPages, new: NewTokens, scores: Scores
    ) -> tuple[jax.Array, LayerPages]:
        """As `PagedBatch.attend`, decode rows first, then prompt blocks."""
        (q, k, v), split = new, batch.split
        if split is not None:
            k, v = jax.tree.map(split.gathered, (k, v))
        layer = write(layer, k, v, batch.pages, batch.offsets)
        decodes = batch.decode_tables.shape[0]

        def run(queries: jax.Array, *where: jax.Array, **ahead: jax.Array) -> jax.Array:
            if split is not None:
                queries, where, ahead = jax.tree.map(split.queries, (queries, where, ahead))
            attended = self.read(queries, layer, *where, **scores._asdict(), **ahead)
            return attended.reshape(-1, q.shape[1], attended.shape[-1])

        parts = [run(q[:decodes, None], batch.decode_tables, batch.decode_limits)]
        if blocks := batch.block_tables.shape[0]:
            queries = q[decodes:].reshape(blocks, -1, *q.shape[1:])
            ahead = {} if batch.block_ahead is None else {"ahead": batch.block_ahead}
            parts.append(run(queries, batch.block_tables, batch.block_limits, **ahead))
        return jnp.concatenate(parts), layer
