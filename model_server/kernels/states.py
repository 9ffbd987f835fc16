"""States of recurrent layers, kept in pages beside the keys and values of other layers.

A page of such a layer holds one state for all tokens: the one after the last of its tokens that was
computed. So the page before a position has the state with which that position begins, a full page
has the state at its border, and whoever shares that page goes on from there. Prompt blocks never
cross the border of a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from model_server.kernels.pages import overwrite

State = tuple[jax.Array, ...]  # of one sequence, or [P + 1, ...]: of every page
# state, inputs [C, ...] and how many of them are no padding -> next state, outputs [C, ...]
Advance = Callable[[State, Any, jax.Array], tuple[State, jax.Array]]


class MemoryTokens(NamedTuple):
    """Tokens for a memory f32[H, A, B], which fades and takes in an outer product for each.

    Without a rate the product is of `column` and `row`, and the output is the memory times `read`.
    With one, the product is of `column` and of what the memory lacks of `row` there, times the
    rate; and the output is `read` times the memory.
    """

    column: jax.Array  # f32[C, H, A]
    row: jax.Array  # f32[C, H, B]
    read: jax.Array  # f32[C, H, B], with a rate f32[C, H, A]
    decay: jax.Array  # f32[C, H], with a rate also f32[C, H, A] of each row: logarithm, at most 0
    rate: jax.Array | None = None  # f32[C, H]


class Filter(Protocol):
    """A short causal convolution of each channel."""

    @property
    def taps(self) -> jax.Array: ...  # f32[D, K]

    @property
    def offset(self) -> jax.Array | None: ...  # f32[D]

    def __call__(
        self, before: jax.Array, x: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the K - 1 inputs before the next one, f32[D, K - 1], and f32[C, D]."""
        ...


@dataclass(frozen=True, slots=True)
class Filtering:
    """An `Advance` of states that are the last inputs of a convolution."""

    filter: Filter

    def __call__(self, state: State, given: Any, count: jax.Array) -> tuple[State, jax.Array]:
        left, made = self.filter(state[0], given, count)
        return (left,), made


@dataclass(frozen=True, slots=True)
class Remembering:
    """An `Advance` of states whose last one is a memory; convolutions have those before it."""

    filters: Sequence[Filter]  # of the first inputs
    # what these made, all inputs -> what the memory takes, the rest; row by row
    tokens: Callable[[Sequence[jax.Array], Any], tuple[MemoryTokens, Any]]
    # memory f32[H, A, B], tokens -> next memory, outputs
    remembered: Callable[[jax.Array, MemoryTokens], tuple[jax.Array, jax.Array]]
    finished: Callable[[jax.Array, Any], jax.Array]  # those outputs, the rest -> outputs

    def __call__(self, state: State, given: Any, count: jax.Array) -> tuple[State, jax.Array]:
        left, tokens, rest = self.prepared(state[:-1], given, count)
        memory, made = self.remembered(state[-1], tokens)
        return (*left, memory), self.finished(made, rest)

    def prepared(
        self, before: State, given: Any, count: jax.Array
    ) -> tuple[State, MemoryTokens, Any]:
        """Return the last inputs of the convolutions, what the memory takes, and the rest."""
        there = jnp.arange(jax.tree.leaves(given)[0].shape[0]) < count

        def kept(each: jax.Array) -> jax.Array:
            return jnp.where(there.reshape(-1, *[1] * (each.ndim - 1)), each, 0.0)

        given = jax.tree.map(kept, given)
        each = zip(self.filters, before, given, strict=False)
        filtered = [run(was, part, count) for run, was, part in each]
        tokens, rest = self.tokens([made for _, made in filtered], given)
        tokens = tokens._replace(column=kept(tokens.column), decay=kept(tokens.decay))
        return tuple(left for left, _ in filtered), tokens, rest


@runtime_checkable
class StateKernel(Protocol):
    """Advances states in pages token by token, in place: decode rows and blocks alike."""

    def convolve(
        self, held: jax.Array, places: StatePlaces, counts: jax.Array, x: jax.Array, by: Filter
    ) -> tuple[jax.Array, jax.Array]:
        """Return f32[T, D] and the last inputs f32[P + 1, D, K - 1]."""
        ...

    def take_in(
        self, memory: jax.Array, places: StatePlaces, counts: jax.Array, tokens: MemoryTokens
    ) -> tuple[jax.Array, jax.Array]:
        """Return the outputs of T tokens and the memories f32[P + 1, H, A, B]."""
        ...


@runtime_checkable
class MemoryKernel(Protocol):
    """Adds a token of each row to memories in pages, in place."""

    def remember(
        self, memory: jax.Array, places: StatePlaces, tokens: MemoryTokens
    ) -> tuple[jax.Array, jax.Array]:
        """Return the outputs of D rows and the memories f32[P + 1, H, A, B].

        tokens: [D, H, ...]. No row reads a page that another one writes.
        """
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class StatePlaces:
    """Pages of the states of a flat batch: D decode rows, then N blocks of prompt tokens."""

    reads: jax.Array  # i32[D + N]: page of the state before the first token
    writes: jax.Array  # i32[D + N]: page of the state after the last one; 0: it is not kept
    fresh: jax.Array  # bool[D + N]: begins a sequence
    chained: jax.Array  # bool[N]: goes on where the block before it ended
    # bool[D]: tries a draft token, and goes on where the row before it ended; None: none may
    drafted: jax.Array | None = None

    def rows(self, rows: slice) -> StatePlaces:
        """Return the places of these decode rows and blocks."""
        places = self.reads[rows], self.writes[rows], self.fresh[rows]
        return StatePlaces(*places, self.chained, self.drafted)


def places_of(
    decode_tables: jax.Array,  # i32[D, S/G], like the others as in `PagedBatch`
    decode_limits: jax.Array,
    block_tables: jax.Array,
    block_limits: jax.Array,
    page_size: int,
    draft_pages: jax.Array | None = None,
) -> StatePlaces:
    """Find the pages of the states that a batch reads and writes.

    draft_pages: i32[D], where the state behind the draft token of a row is kept; 0: it tries none.
    """
    counts = jnp.sum(block_limits > 0, axis=1)
    starts = jnp.concatenate([decode_limits[:, 0], block_limits[:, 0]]) - 1  # -1: padding
    last = jnp.concatenate([decode_limits[:, 0], block_limits[:, 0] + counts - 1]) - 1
    tables = jnp.concatenate([decode_tables, block_tables])

    def pages(positions: jax.Array) -> jax.Array:
        index = jnp.maximum(positions, 0) // page_size
        return jnp.take_along_axis(tables, index[:, None], axis=1, mode="clip")[:, 0]

    reads, writes, fresh = pages(starts - 1), pages(last), starts <= 0
    blocks = slice(decode_tables.shape[0], None)
    before = jnp.pad(writes[blocks], (1, 0))[:-1]
    chained = (reads[blocks] == before) & ~fresh[blocks] & (before > 0)
    # Of several blocks in one page, the last one leaves its state there.
    followed = jnp.pad(chained, (0, 1))[1:] & (
        jnp.pad(writes[blocks], (0, 1))[1:] == writes[blocks]
    )
    kept = writes.at[blocks].set(jnp.where(followed, 0, writes[blocks]))
    if draft_pages is None:
        return StatePlaces(reads, kept, fresh, chained)
    drafted, rows = draft_pages > 0, slice(draft_pages.shape[0])
    kept = kept.at[rows].set(jnp.where(drafted, draft_pages, kept[rows]))
    # The page of the row before it, for kernels that read pages when its turn has come.
    before = jnp.where(drafted, jnp.roll(kept[rows], 1), reads[rows])
    return StatePlaces(reads.at[rows].set(before), kept, fresh, chained, drafted)


def advance(
    held: State,  # [P + 1, ...] each
    places: StatePlaces,
    blank: State,  # the state that begins a sequence
    inputs: Any,  # [T, ...] each: D decode rows, then N blocks of C tokens
    counts: jax.Array,  # i32[N]: tokens of each block that are no padding
    step: Advance,
    kernel: Any = None,
) -> tuple[jax.Array, State]:
    """Run a recurrence over a flat batch.

    Returns the outputs [T, ...] of every token, and `held` with the states that it leaves.
    kernel: takes the decode rows of memories if it is a `MemoryKernel`, all tokens if it is a
    `StateKernel`.
    """
    if isinstance(kernel, StateKernel) and isinstance(step, Filtering | Remembering):
        return _advance_natively(kernel, held, places, inputs, counts, step)
    rows, blocks = places.reads.shape[0], counts.shape[0]
    decodes = rows - blocks
    if decodes and isinstance(step, Remembering) and isinstance(kernel, MemoryKernel):
        return _advance_by(kernel, held, places, blank, inputs, counts, step)
    states = _begun(held, places, blank)
    ended, made = _decoded(states, decodes, inputs, step, places.drafted)
    outputs = made[:, 0]
    if blocks:
        rest = jax.tree.map(
            lambda array: array[decodes:].reshape(blocks, -1, *array.shape[1:]), inputs
        )
        of_blocks = tuple(each[decodes:] for each in states)
        last, found = in_turn(of_blocks, places.chained, rest, counts, step)
        ended = jax.tree.map(lambda *parts: jnp.concatenate(parts), ended, last)
        outputs = jnp.concatenate([outputs, found.reshape(-1, *found.shape[2:])])
    new = zip(held, ended, strict=True)
    return outputs, tuple(overwrite(of, places.writes, rows) for of, rows in new)


def _advance_natively(
    kernel: StateKernel,
    held: State,
    places: StatePlaces,
    inputs: Any,
    counts: jax.Array,
    step: Filtering | Remembering,
) -> tuple[jax.Array, State]:
    """As `advance`, of states that begin with zeros; what lies between is computed by row."""
    filters = [step.filter] if isinstance(step, Filtering) else step.filters
    given = [inputs] if isinstance(step, Filtering) else inputs
    pairs = zip(filters, held, given, strict=False)
    filtered = [kernel.convolve(was, places, counts, part, by) for by, was, part in pairs]
    made, left = [made for made, _ in filtered], [left for _, left in filtered]
    if isinstance(step, Filtering):
        return made[0], tuple(left)
    tokens, rest = step.tokens(made, inputs)
    outputs, memory = kernel.take_in(held[-1], places, counts, tokens)
    return step.finished(outputs, rest), (*left, memory)


def _begun(held: State, places: StatePlaces, blank: State) -> State:
    """Read the states with which rows and blocks begin."""

    def begun(of: jax.Array, first: jax.Array) -> jax.Array:
        read = of.at[places.reads].get(mode="promise_in_bounds")
        return jnp.where(places.fresh.reshape(-1, *[1] * first.ndim), first, read)

    return tuple(map(begun, held, blank))


@dataclass(frozen=True)
class PlainMemories:
    """A `MemoryKernel` of no platform."""

    remembered: Callable[[jax.Array, MemoryTokens], tuple[jax.Array, jax.Array]]

    def remember(
        self, memory: jax.Array, places: StatePlaces, tokens: MemoryTokens
    ) -> tuple[jax.Array, jax.Array]:
        """As `MemoryKernel.remember`."""
        (begun,) = _begun((memory,), places, (jnp.zeros(memory.shape[1:], memory.dtype),))
        each = jax.tree.map(lambda array: array[:, None], tokens)
        after, made = jax.vmap(self.remembered)(begun, each)
        return made[:, 0], overwrite(memory, places.writes, after)


def _advance_by(
    kernel: MemoryKernel,
    held: State,
    places: StatePlaces,
    blank: State,
    inputs: Any,
    counts: jax.Array,
    step: Remembering,
) -> tuple[jax.Array, State]:
    """As `advance`, with the memories of decode rows by a kernel, then the blocks."""
    decodes = places.reads.shape[0] - counts.shape[0]
    of_rows, of_blocks = (places.rows(rows) for rows in (slice(decodes), slice(decodes, None)))

    def prepared(state: State, given: Any, count: jax.Array) -> tuple[State, Any]:
        left, *more = step.prepared(state, given, count)
        return left, more

    before = _begun(held[:-1], of_rows, blank[:-1])
    left, (tokens, rest) = _decoded(before, decodes, inputs, prepared, places.drafted)
    alone = jax.tree.map(lambda array: array[:, 0], tokens)
    if alone.decay.ndim > 2:  # each row of a memory has its own, which the kernel does not take
        kernel = PlainMemories(step.remembered)
    made, memory = _remembered(kernel, held[-1], of_rows, alone)
    outputs = jax.vmap(step.finished)(made[:, None], rest)[:, 0]
    written = [
        overwrite(of, of_rows.writes, rows) for of, rows in zip(held[:-1], left, strict=True)
    ]
    held = (*written, memory)
    if not counts.shape[0]:
        return outputs, held
    blocks = jax.tree.map(lambda array: array[decodes:], inputs)
    found, held = advance(held, of_blocks, blank, blocks, counts, step)
    return jnp.concatenate([outputs, found]), held


def _decoded(
    states: State, decodes: int, inputs: Any, step: Any, drafted: jax.Array | None
) -> tuple[State, Any]:
    """Run one token of each decode row; returns states [D, ...] and what is made, [D, 1, ...].

    If a row tries a draft token, all run one after the other, with the same bits.
    """
    first = jax.tree.map(lambda array: array[:decodes, None], inputs)
    begun = tuple(each[:decodes] for each in states)
    ones = jnp.ones((decodes,), jnp.int32)

    def together(_: Any) -> Any:
        return jax.vmap(step)(begun, first, ones)

    def by_row(chained: jax.Array) -> Any:
        return in_turn(begun, chained, first, ones, step)

    if drafted is None or not decodes:
        return together(None)
    return jax.lax.cond(drafted.any(), by_row, together, drafted)


def _remembered(
    kernel: MemoryKernel, memory: jax.Array, places: StatePlaces, tokens: MemoryTokens
) -> tuple[jax.Array, jax.Array]:
    """As `MemoryKernel.remember`, but a row that tries a draft token reads what the last one wrote.

    A kernel may read a row's page before the row before it has written, so each has its own call.
    """
    if places.drafted is None:
        return kernel.remember(memory, places, tokens)

    def one(memory: jax.Array, row: Any) -> tuple[jax.Array, jax.Array]:
        (reads, writes, fresh), given = jax.tree.map(lambda each: each[None], row)
        place = StatePlaces(reads, writes, fresh, places.chained)
        made, memory = kernel.remember(memory, place, given)
        return memory, made[0]

    def by_row(memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = (places.reads, places.writes, places.fresh), tokens
        memory, made = jax.lax.scan(one, memory, rows)
        return made, memory

    def together(memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        return kernel.remember(memory, places, tokens)

    return jax.lax.cond(places.drafted.any(), by_row, together, memory)


def in_turn(
    states: State,  # [N, ...] each
    chained: jax.Array,  # bool[N]
    inputs: Any,  # [N, C, ...] each
    counts: jax.Array,  # i32[N]
    step: Advance,
) -> tuple[State, jax.Array]:
    """Run the blocks one after the other; returns their states and outputs, [N, ...] each."""

    def block(before: State, of: Any) -> Any:
        state, goes_on, given, count = of
        begun = jax.tree.map(lambda one, other: jnp.where(goes_on, one, other), before, state)
        ended, made = step(begun, given, count)
        return ended, (ended, made)

    start = jax.tree.map(lambda each: jnp.zeros_like(each[0]), states)
    _, made = jax.lax.scan(block, start, (states, chained, inputs, counts))
    return made


def advance_whole(blank: State, inputs: Any, counts: jax.Array, step: Advance) -> jax.Array:
    """Return the outputs [B * T, ...] of whole inputs, [B * T, ...] each, of these lengths."""
    shaped = jax.tree.map(lambda each: each.reshape(counts.shape[0], -1, *each.shape[1:]), inputs)
    _, made = jax.vmap(step, in_axes=(None, 0, 0))(blank, shaped, counts)
    return made.reshape(-1, *made.shape[2:])
