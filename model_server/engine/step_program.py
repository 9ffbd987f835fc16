"""One step of a model, traced from shapes alone, as two programs: tokens in, tokens out.

The forward pass, one program per bucket, gives logits; the choice, one per number of logit rows,
gives tokens. Both leave their results on the device, so that neither waits for the host, and what
the choice needs beside the logits may still be computed while the forward pass runs.

Creates no arrays: a lowered step runs on this process's devices, or is compiled for devices
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from model_server.engine.buckets import Bucket
from model_server.engine.compiling import options_for
from model_server.engine.media.encoder_program import EncoderProgram
from model_server.engine.media.media_limits import MediaLimits
from model_server.engine.sampling.drawing import RowSampling
from model_server.engine.sampling.sampler import PADDING, sample
from model_server.engine.slot_state import (
    RowEdits,
    SlotState,
    edit_logits,
    note_tokens,
    state_shapes,
    unpack,
    write_masks,
    write_slot,
)
from model_server.engine.slot_write import WriteLayout
from model_server.engine.step_arrays import (
    NEAR_PARTS,
    ROW_COLUMNS,
    SAMPLING_COLUMNS,
    ColumnLayout,
    row_counts,
)
from model_server.engine.types import EngineLimits
from model_server.kernels.cpu.attention import CpuAttention
from model_server.kernels.cpu.attention import overwrite as native_overwrite
from model_server.kernels.media_vectors import MediaVectors, vectors_of
from model_server.kernels.paged import Kernel, KernelRefusal, NearTables, PagedBatch
from model_server.kernels.pages import (
    LayerPages,
    Overwrite,
    copy_pages,
    copy_pages_apart,
    overwrite,
)
from model_server.kernels.sequence_sharding import SequenceSharding
from model_server.models.layers.live_rows import set_live_rows
from model_server.models.layers.low_rank import choose_adapters
from model_server.models.weights.quantized import byte_shape
from model_server.models.weights.stage import Stage
from model_server.models.weights.weight import Blueprint
from sax.errors import MemoryPlanError


@contextmanager
def told_as_plan_error(of: str = "") -> Iterator[None]:
    """Raise MemoryPlanError if a kernel refuses the shapes of `of`."""
    try:
        yield
    except KernelRefusal as exc:
        raise MemoryPlanError(f"{of}: {exc}" if of else str(exc)) from exc


COPIES = 8  # pages that one call copies

_PLACES = ("pages", "offsets", "decode_tables", "decode_limits", "block_tables", "block_limits")


ADAPTER = "write an adapter"
WRITE = "write a slot"  # the name of a program beside those of the buckets
COPY = "copy pages"


def choice_name(rows: int) -> str:
    """Name the program that chooses tokens from this many rows of logits."""
    return f"choice of {rows} tokens"


def series_name(bucket: Bucket) -> str:
    """Name the program that computes several steps of a bucket."""
    return f"series of {bucket}"


def masks_name(rows: int) -> str:
    return f"masks of {rows} rows"


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


class Outputs(NamedTuple):
    """Step outputs that are copied to the host."""

    numbers: jax.Array  # i32[3, R]: tokens, log-probabilities as bits, ranks
    top_tokens: jax.Array  # i32[R, 20]
    top_logprobs: jax.Array  # f32[R, 20]


class StepProgram:
    """Lowers the programs of a model, or of one pipeline stage."""

    def __init__(
        self,
        blueprint: Blueprint,
        leaves: Sequence[Any],  # arrays or their shapes, with shardings, as declared
        pages: Sequence[Any],
        limits: EngineLimits,
        kernel: Kernel,
        split: SequenceSharding | None = None,
        stage: Stage | None = None,
        embed: int = 0,
        *,
        vocab: int,
        logits: jax.sharding.Sharding | None = None,
        near: Sequence[bool] = (),
        encoder: EncoderProgram | None = None,
    ) -> None:
        """stage: None: all layers. embed: width of the hidden states that stages pass on.

        near: of each layer, True if it is among those with pages of their own; (): none has any.

        logits: their sharding, f32[R, V], between the two programs; None: replicated.

        encoder: of the first stage of a model whose limits have media; None: it takes text alone.
        """
        self._blueprint = blueprint
        self._kernel = kernel
        self._split = split
        self.limits = limits
        self.stage = stage
        self.embed = embed
        self.near = tuple(near)
        self.leaves = tuple(map(byte_shape, leaves))
        self.factors = blueprint.factors  # indices of the leaves that hold adapters
        self.pages = jax.tree.map(shape_of, tuple(pages))
        self.everywhere = everywhere(leaves[0].sharding)
        self.vocab = vocab
        self._logits = logits or self.everywhere
        state = state_shapes(limits, vocab, self.everywhere)
        self.last_tokens: Any = state.last_tokens  # i32[B + 1], which the first layers take
        # None: this stage chooses no tokens.
        self.state = state if stage is None or stage.is_last else None
        self.encoder = encoder
        first = stage is None or stage.is_first
        assert (encoder is not None) == (limits.media is not None and first), "media need one"
        _check_levels(limits, stage)

    @property
    def skips(self) -> bool:
        """True if padding rows are not multiplied."""
        return self._native and any(each.is_tiled for each in self._blueprint.declarations)

    @property
    def overwrite(self) -> Overwrite:
        """Return the function with which programs overwrite pages of the pool."""
        return native_overwrite if self._native else overwrite

    @property
    def _native(self) -> bool:
        return self._kernel == CpuAttention()

    def lower(self, bucket: Bucket) -> jax.stages.Lowered:
        """Trace the forward pass of one bucket for the devices that the shapes are sharded over.

        Raises MemoryPlanError for shapes that the kernel does not support.
        """
        layout = ColumnLayout(bucket, self.limits)
        # Every host of a stage passes on its own copy of the hidden states; pages stay where they
        # are.
        made: Any = self.everywhere
        if self.state is not None:
            made = Computed(*[self._logits, made])
        jitted = jax.jit(
            self._trace(layout),
            donate_argnums=1,
            out_shardings=(made, jax.tree.map(lambda array: array.sharding, self.pages)),
            compiler_options=options_for(self.everywhere),
        )
        vector = self._input((layout.size,), jnp.int32)
        with told_as_plan_error(str(bucket)):
            given = self._given(layout)
            return jitted.lower(self.leaves, self.pages, vector, given, *self._buffer(layout))

    def programs(self, buckets: Sequence[Bucket]) -> dict[str, Callable[[], jax.stages.Lowered]]:
        """Return what traces each program of these buckets, by name."""
        made: dict[str, Callable[[], jax.stages.Lowered]] = {
            str(bucket): partial(self.lower, bucket) for bucket in buckets
        }
        if self.state is not None:
            for rows in row_counts(buckets, self.limits):
                made[choice_name(rows)] = partial(self.lower_choose, rows)
                made[masks_name(rows)] = partial(self.lower_masks, rows)
            made[WRITE] = self.lower_write
            for bucket in self.series_of(buckets):
                made[series_name(bucket)] = partial(self.lower_series, bucket)
        made[COPY] = self.lower_copy  # for the prefix cache, and for hypotheses of a beam search
        if self.factors:
            made[ADAPTER] = self.lower_adapter
        if self.encoder is not None:
            made |= self.encoder.programs()
        return made

    def series_of(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Return the buckets of which one launch computes several steps."""
        if self.limits.steps_per_launch < 2 or self.stage is not None:
            return []
        return [bucket for bucket in buckets if not bucket.blocks]

    def lower_series(self, bucket: Bucket) -> jax.stages.Lowered:
        """Trace several decode steps, each of which takes the tokens of the one before.

        Raises MemoryPlanError for shapes that the kernel does not support.
        """
        layout, count = ColumnLayout(bucket, self.limits), self.limits.steps_per_launch
        sharded = jax.tree.map(lambda array: array.sharding, (self.pages, self.state))
        jitted = jax.jit(
            in_turn(self._trace(layout), self._logits, native=self._native),
            donate_argnums=(1, 3),
            out_shardings=(self.everywhere, *sharded),
            compiler_options=options_for(self.everywhere),
        )
        vectors = self._input((count, layout.size), jnp.int32)
        with told_as_plan_error(series_name(bucket)):
            return jitted.lower(self.leaves, self.pages, vectors, self.state)

    def lower_choose(self, rows: int) -> jax.stages.Lowered:
        """Trace the choice of tokens from this many rows of logits."""
        state, shape = self.state, (rows, self.vocab)
        logits: Any = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=self._logits)
        settings: Any = self._input((len(ROW_COLUMNS), rows), jnp.int32)
        jitted = jax.jit(
            partial(choose, native=self._native),
            donate_argnums=1,
            # Every device samples the same tokens.
            out_shardings=(self.everywhere, jax.tree.map(lambda array: array.sharding, state)),
            compiler_options=options_for(self.everywhere),
        )
        return jitted.lower(Computed(logits, settings), state)

    def lower_copy(self) -> jax.stages.Lowered:
        """Trace the program that copies pages within the pool."""
        jitted = jax.jit(
            partial(copy_pages_apart, near=self.near, write=self.overwrite)
            if self.near
            else partial(copy_pages, write=self.overwrite),
            donate_argnums=0,
            out_shardings=jax.tree.map(lambda array: array.sharding, self.pages),
        )
        return jitted.lower(self.pages, self._input((COPIES, self.copied), jnp.int32))

    @property
    def copied(self) -> int:
        """Numbers that each entry of `Step.copies` has."""
        return 2 if self.limits.near_window is None else 4

    def lower_write(self) -> jax.stages.Lowered:
        """Trace the program that writes the edits of a sequence into its slot."""
        context = self.limits.max_context
        write = jax.jit(
            lambda state, vector: write_slot(state, vector, context),
            donate_argnums=0,
            out_shardings=jax.tree.map(lambda array: array.sharding, self.state),
        )
        size = WriteLayout(context, self.vocab).size
        return write.lower(self.state, self._input((size,), jnp.int32))

    def lower_adapter(self) -> jax.stages.Lowered:
        """Trace the program that writes an adapter's factors into its place."""
        held = tuple(self.leaves[index] for index in self.factors)

        def write(held: Any, given: Any, place: jax.Array) -> Any:
            return tuple(each.at[place].set(new) for each, new in zip(held, given, strict=True))

        jitted = jax.jit(
            write, donate_argnums=0, out_shardings=tuple(each.sharding for each in held)
        )
        return jitted.lower(held, self.adapter_shapes, self._input((), jnp.int32))

    @property
    def adapter_shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and shardings of one adapter's factors."""
        return tuple(_of_one_place(self.leaves[index]) for index in self.factors)

    def lower_masks(self, rows: int) -> jax.stages.Lowered:
        """Trace the program that writes up to this many masks into their slots."""
        write = jax.jit(
            write_masks,
            donate_argnums=0,
            out_shardings=jax.tree.map(lambda array: array.sharding, self.state),
        )
        return write.lower(self.state, self._input((rows, 1 + -(-self.vocab // 32)), jnp.int32))

    def _input(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.everywhere)

    def _given(self, layout: ColumnLayout) -> Any:
        """Return what a forward pass takes beside weights, pages and vector."""
        if self.stage is None or self.stage.is_first:
            return self.last_tokens
        return self._input((layout.tokens, self.embed), jnp.float32)

    def reads_media(self, bucket: Bucket) -> bool:
        """Return True if tokens of a bucket may be those of media: decodes never are."""
        return self.encoder is not None and bucket.blocks > 0

    def _buffer(self, layout: ColumnLayout) -> tuple[Any, ...]:
        if self.encoder is None or not self.reads_media(layout.bucket):
            return ()
        return (self.encoder.buffer,)

    def _trace(self, layout: ColumnLayout) -> Callable[..., Any]:
        stage = self.stage
        levels = 0 if self.limits.media is None else self.limits.media.levels

        def step(
            leaves: Any, pages: Any, vector: jax.Array, given: jax.Array, *buffer: jax.Array
        ) -> Any:
            model: Any = self._blueprint.assemble(leaves)
            parts = unpack(layout.parts, vector)
            if "adapters" in parts:
                choose_adapters(model, parts["adapters"])
            batch = paged_batch(parts, self._kernel, self._split, self.limits.media)
            if self.limits.recurrent:
                batch = batch.with_states(self.limits.page_size)
            if self._native:
                set_live_rows(model, live_tokens(parts), live_heads(parts, self.limits.slots))
            if stage is None:
                hidden, pages = run_step(model, pages, parts, batch, given, buffer, levels)
            else:
                first = stage.is_first
                hidden, pages = run_stage(
                    model, pages, parts, batch, given, buffer, levels, first=first
                )
                if not stage.is_last:
                    return hidden, pages
                hidden = model.final_norm(hidden)
            rows = hidden.at[parts["row_index"]].get(mode="promise_in_bounds")
            settings = vector[layout.choices :].reshape(-1, layout.logit_rows)
            return Computed(model.logits(rows), settings), pages

        return step


def _check_levels(limits: EngineLimits, stage: Stage | None) -> None:
    """Raise MemoryPlanError if layers of later stages would add vectors of media."""
    levels = 0 if limits.media is None else limits.media.levels
    if stage is not None and stage.is_first and stage.end < levels:
        raise MemoryPlanError(
            f"the first {levels} layers of this model add vectors of images, and the first stage "
            f"has {stage.end}: serve it in fewer stages (NUM_STAGES)"
        )


def everywhere(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
    """Return the sharding that replicates over the devices that hold the weights."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding


def _of_one_place(factors: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    sharding: Any = factors.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    return jax.ShapeDtypeStruct(factors.shape[1:], factors.dtype, sharding=sharding)


def shape_of(array: jax.Array) -> jax.ShapeDtypeStruct:
    """Return shape, dtype and sharding, for compiling after the array may be gone."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


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
    media: MediaLimits | None = None,
) -> PagedBatch:
    near = NearTables(*(step[part] for part in NEAR_PARTS)) if NEAR_PARTS[0] in step else None
    places: dict[str, Any] = {field: step[field] for field in _PLACES}
    if (ahead := step.get("block_ahead")) is not None and media is not None:
        places |= {"block_ahead": ahead, "least_run": media.least}
    return PagedBatch(**places, kernel=kernel, split=split, near=near)


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

    Barriers keep each of them as it is in a program of its own, so that answers are the same. XLA
    on CPU would copy the pages in every round of a loop, so that it gets none there.
    """

    def one(leaves: Any, held: tuple[Any, SlotState], vector: jax.Array) -> Any:
        pages, state = held
        computed, pages = step(leaves, pages, vector, state.last_tokens)
        if isinstance(logits, NamedSharding):
            placed = jax.lax.with_sharding_constraint(computed.logits, logits)
            computed = computed._replace(logits=placed)
        computed, pages, state = jax.lax.optimization_barrier((computed, pages, state))
        outputs, state = choose(computed, state, native=native)
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
    return RowEdits(slot=slot, position=position, **_columns(step, RowEdits))


def _row_sampling(step: dict[str, jax.Array]) -> RowSampling:
    seed = jnp.stack([step["seed_high"], step["seed_low"]], axis=-1)
    return RowSampling(
        seed=jax.lax.bitcast_convert_type(seed, jnp.uint32),
        position=step["row_position"],
        target=step["target"],
        **_columns(step, RowSampling),
    )
