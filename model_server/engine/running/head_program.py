"""Programs of a draft head: layers that read the hidden states of the model they draft for.

A row of a head is made of a token and of the hidden state before it: that of the model, or, behind
a draft token, the head's own. So the row of a position can be computed as soon as a step takes in
its token, and depends on nothing behind it: its keys and values lie at the page and the offset of
that token, and pages that are shared, copied or handed over need no thought.

Beside them the head keeps the hidden state of every token, in the same pages. A step that goes on
behind a cached prefix, or behind draft tokens of which some were wrong, finds there what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from model_server.engine.buckets import Bucket
from model_server.engine.column_layout import ColumnLayout
from model_server.engine.running.draft_program import DraftProgram
from model_server.engine.slot_state import unpack
from model_server.engine.step_functions import paged_batch, tokens_of
from model_server.engine.step_program import told_as_plan_error
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages


class HeadProgram(DraftProgram):
    """Lowers the programs of a draft head."""

    def __init__(self, *parts: Any, width: int, **more: Any) -> None:
        """width: W, numbers of a token that a step shows; the rest as of a DraftProgram."""
        super().__init__(*parts, **more)
        self._width = width

    def lower(self, bucket: Bucket) -> jax.stages.Lowered:
        """Trace what a step of this bucket writes into the head's pages.

        Takes the vector of the step, the last tokens i32[B + 1] and the hidden states f32[T, W].
        Raises MemoryPlanError for shapes that the kernel does not support.
        """
        layout = ColumnLayout(bucket, self.limits)
        jitted = self._jitted(self._follow(layout), self._page_shardings)
        vector = self._input((layout.size,), jnp.int32)
        hidden = self._input((layout.tokens, self._width), jnp.float32)
        with told_as_plan_error(f"draft head, {bucket}"):
            return jitted.lower(self.leaves, self.pages, vector, self._given(layout), hidden)

    def _follow(self, layout: ColumnLayout) -> Callable[..., Any]:
        def follow(
            leaves: Any, pages: Any, vector: jax.Array, last_tokens: jax.Array, hidden: jax.Array
        ) -> Any:
            model, parts = self._model(leaves), unpack(layout.parts, vector)
            layers, (kept,) = self._split_pages(pages)
            (states,) = kept
            numbers = _stored(model.kept(hidden), states.dtype)
            at = parts["pages"], parts["offsets"]
            states = states.at[at].set(numbers, mode="promise_in_bounds")
            positions = parts["positions"]
            before = self._before(states, _tables(parts), positions)
            tokens = jnp.minimum(tokens_of(parts, last_tokens), self._known - 1)
            batch = paged_batch(parts, self._kernel, self._split)
            _, layers = model(tokens, before, positions, layers, batch)
            return (*layers, (states,))

        return follow

    def _split_pages(self, pages: Any) -> tuple[Any, tuple[Any, ...]]:
        return tuple(pages[:-1]), tuple(pages[-1:])

    def _before_drafts(self, kept: Any, asked: dict[str, jax.Array]) -> jax.Array:
        ((states,),) = kept
        return self._before(states, asked["tables"], asked["starts"])

    def _before(self, states: jax.Array, tables: jax.Array, positions: jax.Array) -> jax.Array:
        """Return the hidden states f32[T, D] before these positions; the first has its own.

        states: [P + 1, G, D]. tables: i32[T, S/G], of the page of each position.
        """
        index, offsets = jnp.divmod(jnp.maximum(positions - 1, 0), self.limits.page_size)
        pages = jnp.take_along_axis(tables, index[:, None], axis=1)[:, 0]
        found = states.at[pages, offsets].get(mode="promise_in_bounds")
        return _loaded(found)

    def _forward(
        self,
        model: Any,
        given: tuple[jax.Array, Any],
        positions: jax.Array,
        pages: Any,
        batch: PagedBatch,
    ) -> tuple[jax.Array, Any, tuple[LayerPages, ...]]:
        tokens, before = given
        hidden, pages = model(tokens, before, positions, pages, batch)
        return model.tokens(hidden), hidden, pages


def _stored(numbers: jax.Array, dtype: Any) -> jax.Array:
    """Return f32 numbers as pages of this dtype keep them (`kept_dtype`)."""
    if dtype == jnp.float32:
        return numbers
    return jax.lax.bitcast_convert_type(numbers.astype(jnp.bfloat16), dtype)


def _loaded(kept: jax.Array) -> jax.Array:
    if kept.dtype == jnp.float32:
        return kept
    return jax.lax.bitcast_convert_type(kept, jnp.bfloat16).astype(jnp.float32)


def _tables(parts: dict[str, jax.Array]) -> jax.Array:
    """Return the page table of each token of a step, i32[T, S/G]."""
    block = parts["block_limits"].shape[1]
    return jnp.concatenate(
        [parts["decode_tables"], jnp.repeat(parts["block_tables"], block, axis=0)]
    )
