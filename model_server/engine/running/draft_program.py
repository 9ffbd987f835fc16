"""Programs of a draft model or head, traced from shapes alone: it follows the steps, and it drafts.

Its pages have the numbers of the model's own pages: what lies at a page and an offset there, lies
at the same place here. So it takes the very vector of a step, and copies and shared pages need no
thought. It gives no logits then: only its keys and values are kept.

Draft tokens are one program: each token goes in at the next position, and the likeliest one after
it is the next draft token. They overwrite each other's keys and values, as wrong draft tokens of a
step do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.engine.buckets import Bucket
from model_server.engine.column_layout import ColumnLayout, places_of
from model_server.engine.compiling import options_for
from model_server.engine.running.ops import Beginning
from model_server.engine.slot_state import unpack
from model_server.engine.step_functions import paged_batch, run_step, tokens_of
from model_server.engine.step_program import COPY, StepProgram, told_as_plan_error
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages

Lower = Callable[[], jax.stages.Lowered]


def draft_tokens_name(rows: int) -> str:
    return f"guesses of {rows} sequences"  # a key of precompiled sets


def program_name(name: str) -> str:
    """Return the name of a draft model's program among those of its model."""
    return f"draft model: {name}"


@dataclass(frozen=True)
class DraftLayout:
    """Offsets and shapes of the one vector that asks for draft tokens of R sequences."""

    rows: int  # R
    pages: int  # of a table: S/G

    @cached_property
    def parts(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Map each name to (offset, shape)."""
        shapes: dict[str, tuple[int, ...]] = {
            "tables": (self.rows, self.pages),
            **dict.fromkeys(("starts", "tokens", "counts"), (self.rows,)),
            "depth": (),  # draft tokens that follow each other, at most
        }
        return places_of(shapes)

    @property
    def size(self) -> int:
        return self.parts["depth"][0] + 1

    def packed(self, beginnings: Sequence[Beginning], tables: np.ndarray, depth: int) -> np.ndarray:
        """Return the vector; rows that are not used make no draft tokens. tables: i32[n, S/G]."""
        vector = np.zeros(self.size, np.int32)
        columns = {
            "starts": [each.start for each in beginnings],
            "tokens": [each.token for each in beginnings],
            "counts": [each.count for each in beginnings],
            "depth": [depth],
            "tables": tables.reshape(-1),
        }
        for name, values in columns.items():
            offset, _ = self.parts[name]
            vector[offset : offset + len(values)] = values
        return vector


class DraftProgram(StepProgram):
    """Lowers the programs of a draft model."""

    def __init__(self, *parts: Any, most: int, known: int, **more: Any) -> None:
        """Take what a StepProgram takes, and what bounds draft tokens.

        most: draft tokens that follow each other. known: token ids that both models have.
        """
        super().__init__(*parts, **more)
        self.most = most
        self._known = known

    def programs(self, buckets: Sequence[Bucket]) -> dict[str, Lower]:
        """Return what traces each program, by name."""
        return {
            **{str(bucket): partial(self.lower, bucket) for bucket in buckets},
            **{
                draft_tokens_name(rows): partial(self.lower_draft_tokens, rows)
                for rows in self.sizes(buckets)
            },
            COPY: self.lower_copy,
        }

    def sizes(self, buckets: Sequence[Bucket]) -> tuple[int, ...]:
        """Return the rows of the programs that draft: those of the steps without prompts."""
        return tuple(bucket.decodes for bucket in buckets if not bucket.blocks)

    def lower(self, bucket: Bucket) -> jax.stages.Lowered:
        """Trace what a step of this bucket writes into the draft model's pages.

        Takes the vector of the step and the last tokens, i32[B + 1]. Raises MemoryPlanError for
        shapes that the kernel does not support.
        """
        layout = ColumnLayout(bucket, self.limits)
        jitted = self._jitted(self._follow(layout), self._page_shardings)
        vector = self._input((layout.size,), jnp.int32)
        with told_as_plan_error(f"draft model, {bucket}"):
            return jitted.lower(self.leaves, self.pages, vector, self._given(layout))

    def lower_draft_tokens(self, rows: int) -> jax.stages.Lowered:
        """Trace draft tokens for so many sequences: i32[most, R], and the pages."""
        layout = DraftLayout(rows, self.limits.pages_per_sequence)
        jitted = self._jitted(self._draft(layout), (self.everywhere, self._page_shardings))
        with told_as_plan_error(draft_tokens_name(rows)):
            return jitted.lower(self.leaves, self.pages, self._input((layout.size,), jnp.int32))

    @property
    def _page_shardings(self) -> Any:
        return jax.tree.map(lambda array: array.sharding, self.pages)

    def _jitted(self, trace: Callable[..., Any], shardings: Any) -> Any:
        options = options_for(self.everywhere)
        return jax.jit(trace, donate_argnums=1, out_shardings=shardings, compiler_options=options)

    def _follow(self, layout: ColumnLayout) -> Callable[..., Any]:
        def follow(leaves: Any, pages: Any, vector: jax.Array, last_tokens: jax.Array) -> Any:
            parts = unpack(layout.parts, vector)
            parts["tokens"] = jnp.minimum(parts["tokens"], self._known - 1)
            last_tokens = jnp.minimum(last_tokens, self._known - 1)
            batch = paged_batch(parts, self._kernel, self._split)
            return run_step(self._model(leaves), pages, parts, batch, last_tokens)[1]

        return follow

    def _draft(self, layout: DraftLayout) -> Callable[..., Any]:
        def draft_token(leaves: Any, pages: Any, vector: jax.Array) -> Any:
            model, asked = self._model(leaves), unpack(layout.parts, vector)

            def one(place: jax.Array, held: Any) -> Any:
                pages, hidden, tokens, made = held
                tokens, hidden, pages = self._next(model, pages, asked, (tokens, hidden), place)
                return pages, hidden, tokens, made.at[place].set(tokens)

            made = jnp.zeros((self.most, layout.rows), jnp.int32)
            tokens = jnp.minimum(asked["tokens"], self._known - 1)
            pages, kept = self._split_pages(pages)
            first = (pages, self._before_drafts(kept, asked), tokens, made)
            pages, _, _, made = jax.lax.fori_loop(0, asked["depth"], one, first)
            return made, (*pages, *kept)

        return draft_token

    def _split_pages(self, pages: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return the pages that draft tokens are written into, and those that they leave."""
        return pages, ()

    def _before_drafts(self, kept: Any, asked: dict[str, jax.Array]) -> Any:
        """Return what the first draft tokens are given beside the last tokens."""
        return ()

    def _next(
        self,
        model: Any,
        pages: Sequence[LayerPages],
        asked: dict[str, jax.Array],
        given: tuple[jax.Array, Any],  # tokens i32[R], and what `_forward` returned for them
        place: jax.Array,  # i32[]
    ) -> tuple[jax.Array, Any, tuple[LayerPages, ...]]:
        """Trace the draft token at one place for every row: i32[R].

        Rows that need none write to page 0.
        """
        wanted = place < asked["counts"]
        positions = jnp.where(wanted, asked["starts"] + place, 0)
        step = {
            **self._nothing_of_prompts(),
            **self._places(asked["tables"], positions, wanted),
            "decode_tables": asked["tables"],
            "decode_limits": jnp.where(wanted, positions + 1, 0)[:, None],
        }
        batch = paged_batch(step, self._kernel, self._split)
        return self._forward(model, given, positions, pages, batch)

    def _forward(
        self,
        model: Any,
        given: tuple[jax.Array, Any],
        positions: jax.Array,  # i32[R]
        pages: Any,
        batch: PagedBatch,
    ) -> tuple[jax.Array, Any, tuple[LayerPages, ...]]:
        """Trace the tokens i32[R] behind these, what the next call is given, and the pages."""
        hidden, pages = model(given[0], positions, pages, batch)
        logits = model.logits(hidden)[:, : self._known]
        return jnp.argmax(logits, axis=-1).astype(jnp.int32), (), pages

    def _places(
        self, tables: jax.Array, positions: jax.Array, wanted: jax.Array
    ) -> dict[str, jax.Array]:
        index, offsets = jnp.divmod(positions, self.limits.page_size)
        pages = jnp.take_along_axis(tables, index[:, None], axis=1)[:, 0]
        return {"pages": jnp.where(wanted, pages, 0), "offsets": offsets}

    def _nothing_of_prompts(self) -> dict[str, jax.Array]:
        blocks = {"block_tables": self.limits.pages_per_sequence}
        blocks["block_limits"] = self.limits.prefill_block
        return {name: jnp.zeros((0, size), jnp.int32) for name, size in blocks.items()}

    def _model(self, leaves: Any) -> Any:
        return self._blueprint.assemble(leaves)


class HeadProgram(DraftProgram):
    """Lowers the programs of a draft head: layers that read the hidden states of the model.

    A row of a head is made of a token and of the hidden state before it: that of the model, or,
    behind a draft token, the head's own. So the row of a position can be computed as soon as a step
    takes in its token, and depends on nothing behind it: its keys and values lie at the page and
    the offset of that token, and pages that are shared, copied or handed over need no thought.

    In the same pages the head keeps the hidden state of every token. A step that goes on behind a
    cached prefix, or behind draft tokens of which some were wrong, finds there what it needs.
    """

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
