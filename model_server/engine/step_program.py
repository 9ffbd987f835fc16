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
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from model_server.engine.buckets import Bucket
from model_server.engine.column_layout import ROW_COLUMNS, ColumnLayout, row_counts
from model_server.engine.compiling import options_for
from model_server.engine.encoder_program import EncoderProgram
from model_server.engine.limits import EngineLimits
from model_server.engine.slot_state import state_shapes, unpack, write_masks, write_slot
from model_server.engine.slot_write import WriteLayout
from model_server.engine.step_functions import (
    Computed,
    choose,
    in_turn,
    live_heads,
    live_tokens,
    paged_batch,
    run_stage,
    run_step,
)
from model_server.kernels.cpu.served import has_native, overwrite_of
from model_server.kernels.paged import Kernel, KernelRefusal
from model_server.kernels.pages import Overwrite, copy_pages, copy_pages_apart
from model_server.kernels.sequence_sharding import SequenceSharding
from model_server.models.layers.decoder import ShownStreams, set_live_rows
from model_server.models.layers.low_rank import choose_adapters
from model_server.models.layers.shown_routes import shown_routes
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
        window_layers: Sequence[bool] = (),
        encoder: EncoderProgram | None = None,
        shows: tuple[int, ...] | None = None,
    ) -> None:
        """stage: None: all layers. embed: width of the hidden states that stages pass on.

        window_layers: of each layer, True if it has pages of its own; (): none has.

        logits: their sharding, f32[R, V], between the two programs; None: replicated.

        encoder: of the first stage of a model whose limits have media; None: it takes text alone.

        shows: hidden states that a forward pass gives beside its logits, as `Recipe.shows`.
        """
        self._blueprint = blueprint
        self._kernel = kernel
        self._split = split
        self.limits = limits
        self.stage = stage
        self.embed = embed
        self.window_layers = tuple(window_layers)
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
        self.shows = shows
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
        return overwrite_of(self._kernel)

    @property
    def _native(self) -> bool:
        return has_native(self._kernel)

    def lower(self, bucket: Bucket) -> jax.stages.Lowered:
        """Trace the forward pass of one bucket for the devices that the shapes are sharded over.

        Raises MemoryPlanError for shapes that the kernel does not support.
        """
        layout = ColumnLayout(bucket, self.limits)
        # Every host of a stage passes on its own copy of the hidden states; pages stay where they
        # are.
        made: Any = self.everywhere
        if self.state is not None:
            made = Computed(*[self._logits, made, made if self.limits.routed_experts else None])
        shown = () if self.shows is None else (self.everywhere,)
        jitted = jax.jit(
            self._trace(layout),
            donate_argnums=1,
            out_shardings=(made, jax.tree.map(lambda array: array.sharding, self.pages), *shown),
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
            partial(copy_pages_apart, window_layers=self.window_layers, write=self.overwrite)
            if self.window_layers
            else partial(copy_pages, write=self.overwrite),
            donate_argnums=0,
            out_shardings=jax.tree.map(lambda array: array.sharding, self.pages),
        )
        return jitted.lower(self.pages, self._input((COPIES, self.copied), jnp.int32))

    @property
    def copied(self) -> int:
        """Numbers that each entry of `Step.copies` has."""
        return 2 if self.limits.windows.sliding is None else 4

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
            batch = paged_batch(parts, self._kernel, self._split, self.limits.least_run)
            if self.limits.windows.recurrent:
                batch = batch.with_states(self.limits.page_size, parts.get("draft_pages"))
            if self._native:
                set_live_rows(model, live_tokens(parts), live_heads(parts, self.limits.slots))
            if self.shows:
                model.shown = ShownStreams(self.shows)
            routes = None
            if self.limits.routed_experts:
                with shown_routes() as noted:
                    hidden, pages = run_step(model, pages, parts, batch, given, buffer, levels)
                routes = jnp.stack(noted, axis=1)
            elif stage is None:
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
            computed = Computed(model.logits(rows), settings, routes)
            return computed, pages, *self._shown(model, hidden)

        return step

    def _shown(self, model: Any, hidden: jax.Array) -> tuple[jax.Array, ...]:
        """Return what a draft head is shown of a step, f32[T, W], if there is one."""
        if self.shows is None:
            return ()
        return (model.shown.joined() if self.shows else hidden,)


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
