"""A step as functions of its arrays, to be traced: hidden states of tokens, then a token per row.

`step` holds the parts of a step's vector by their names (step_arrays).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from model_server.engine.column_layout import ROW_COLUMNS, SAMPLING_COLUMNS, WINDOW_PARTS
from model_server.engine.sampling import PADDING, RowSampling, sample
from model_server.engine.slot_state import RowEdits, SlotState, edit_logits, note_tokens
from model_server.kernels.media_vectors import MediaVectors, vectors_of
from model_server.kernels.paged import Kernel, PagedBatch, WindowTables
from model_server.kernels.pages import LayerPages
from model_server.kernels.sequence_sharding import SequenceSharding

_PLACES = ("pages", "offsets", "decode_tables", "decode_limits", "block_tables", "block_limits")


class PagedModel(Protocol):
    """Interface of a model family, as the runner needs it."""

    def __call__(
        self,
        tokens: jax.Array,  # i32[T]
        positions: jax.Array,  # i32[T]
        pages: Sequence[LayerPages],
        batch: PagedBatch,
        media: MediaVectors | None = None,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]: ...

    def logits(self, hidden: jax.Array) -> jax.Array: ...


class Computed(NamedTuple):
    """Results of a forward pass, from which tokens are chosen; both stay on the device."""

    logits: jax.Array  # f32[R, V]
    rows: jax.Array  # i32[len(ROW_COLUMNS), R]
    routes: jax.Array | None = None  # u8 or u16[T, L, k]: experts of each token, where steps give


class Outputs(NamedTuple):
    """Step outputs that are copied to the host."""

    numbers: jax.Array  # i32[3, R]: tokens, log-probabilities as bits, ranks
    top_tokens: jax.Array  # i32[R, 20]
    top_logprobs: jax.Array  # f32[R, 20]
    routes: jax.Array | None = None  # as of `Computed`


def live_tokens(step: dict[str, jax.Array]) -> jax.Array:
    """bool[T]: the tokens of the flat batch that are no padding."""
    limits = step["decode_limits"].reshape(-1), step["block_limits"].reshape(-1)
    return jnp.concatenate(limits) > 0


def live_heads(step: dict[str, jax.Array], slots: int) -> jax.Array:
    """bool[R]: the rows of which a token is chosen or scored."""
    return (step["row_slot"] < slots) | (step["target"] >= 0)


def run_step(
    model: PagedModel,
    pages: Sequence[LayerPages],
    step: dict[str, jax.Array],
    batch: PagedBatch,
    last_tokens: jax.Array,  # i32[B + 1]
    buffer: Sequence[jax.Array] = (),  # f32[M, W], if tokens may be those of media
    levels: int = 0,
) -> tuple[jax.Array, tuple[LayerPages, ...]]:
    """Trace all layers: final hidden states f32[T, D]."""
    tokens = tokens_of(step, last_tokens)
    media = [vectors_of(tokens, each, levels) for each in buffer]
    return model(tokens, step["positions"], pages, batch, *media)


def run_stage(
    model: Any,
    pages: Sequence[LayerPages],
    step: dict[str, jax.Array],
    batch: PagedBatch,
    given: jax.Array,  # f32[T, D] of the stage before, or the last tokens i32[B + 1]
    buffer: Sequence[jax.Array] = (),  # f32[M, W], if tokens may be those of media
    levels: int = 0,
    *,
    first: bool,
) -> tuple[jax.Array, tuple[LayerPages, ...]]:
    """Trace one stage of one step: hidden states to pass on, or to choose tokens from."""
    positions = step["positions"]
    if not first:
        return model.run(given, positions, pages, batch)
    tokens = tokens_of(step, given)
    media = [vectors_of(tokens, each, levels) for each in buffer]
    return model.run(model.embed(tokens, positions, *media), positions, pages, batch, *media)


def tokens_of(step: dict[str, jax.Array], last_tokens: jax.Array) -> jax.Array:
    """i32[T]: decode rows take their slot's last token, unless the step gives them one."""
    decodes = step["decode_slots"].shape[0]
    given, chunks = step["tokens"][:decodes], step["tokens"][decodes:]
    last = last_tokens.at[step["decode_slots"]].get(mode="promise_in_bounds")
    return jnp.concatenate([jnp.where(given >= 0, given, last), chunks])


def paged_batch(
    step: dict[str, jax.Array],
    kernel: Kernel,
    split: SequenceSharding | None,
    least_run: int | None = None,
) -> PagedBatch:
    """Return where the tokens of a step are cached. least_run: as of the batch; None: no token sees
    those after it."""
    window_tables = (
        WindowTables(*(step[part] for part in WINDOW_PARTS)) if WINDOW_PARTS[0] in step else None
    )
    places: dict[str, Any] = {field: step[field] for field in _PLACES}
    if (ahead := step.get("block_ahead")) is not None and least_run is not None:
        places |= {"block_ahead": ahead, "least_run": least_run}
    return PagedBatch(**places, kernel=kernel, split=split, window_tables=window_tables)


def choose(
    computed: Computed, state: SlotState, *, native: bool = False
) -> tuple[Outputs, SlotState]:
    """Trace the choice of a token for each row, and what its slot keeps of it."""
    step = dict(zip(ROW_COLUMNS, computed.rows, strict=True))
    logits, edits, rows = computed.logits, _row_edits(step), _row_sampling(step)
    if native:
        there = live_heads(step, state.last_tokens.shape[0] - 1)
        rows = rows._replace(target=jnp.where(there, rows.target, PADDING))
    sampled = sample(logits, rows, edit_logits(logits, state, edits), native=native)
    bits = jax.lax.bitcast_convert_type(sampled.logprobs, jnp.int32)
    numbers = jnp.stack([sampled.tokens, bits, sampled.ranks])
    outputs = Outputs(numbers, sampled.top_tokens, sampled.top_logprobs)
    return outputs, note_tokens(state, edits, sampled.tokens)


def in_turn(
    step: Callable[..., Any], logits: jax.sharding.Sharding, *, native: bool
) -> Callable[..., Any]:
    """Return what traces several forward passes in turn, each with its choice of tokens.

    Barriers keep each of them as it is in a program of its own, so that answers are the same;
    XLA:CPU drops them before it fuses, and tests hold that its answers are the same. It would copy
    the pages in every round of a loop, so that it gets none.
    """

    def one(leaves: Any, held: tuple[Any, SlotState], vector: jax.Array) -> Any:
        pages, state = held
        computed, pages = step(leaves, pages, vector, state.last_tokens)
        if isinstance(logits, NamedSharding):
            placed = jax.lax.with_sharding_constraint(computed.logits, logits)
            computed = computed._replace(logits=placed)
        computed, pages, state = jax.lax.optimization_barrier((computed, pages, state))
        outputs, state = choose(computed, state, native=native)
        outputs = outputs._replace(routes=computed.routes)
        return jax.lax.optimization_barrier(((pages, state), outputs))

    def steps(leaves: Any, pages: Any, vectors: jax.Array, state: SlotState) -> Any:
        held, outputs = jax.lax.scan(partial(one, leaves), (pages, state), vectors, unroll=native)
        return outputs, *held

    return steps


def _columns(step: dict[str, jax.Array], rows: type[NamedTuple]) -> dict[str, jax.Array]:
    """Return the numbers of each logit row that `rows` has a field for."""
    return {name: _column(step, name) for name in rows._fields if name in SAMPLING_COLUMNS}


def _column(step: dict[str, jax.Array], name: str) -> jax.Array:
    if SAMPLING_COLUMNS[name].kind != "f":
        return step[name]
    return jax.lax.bitcast_convert_type(step[name], jnp.float32)


def _row_edits(step: dict[str, jax.Array]) -> RowEdits:
    slot, position = step["row_slot"], step["row_position"]
    draft = step["draft"]
    return RowEdits(slot=slot, position=position, draft=draft, **_columns(step, RowEdits))


def _row_sampling(step: dict[str, jax.Array]) -> RowSampling:
    seed = jnp.stack([step["seed_high"], step["seed_low"]], axis=-1)
    return RowSampling(
        seed=jax.lax.bitcast_convert_type(seed, jnp.uint32),
        position=step["row_position"],
        target=step["target"],
        **_columns(step, RowSampling),
    )
