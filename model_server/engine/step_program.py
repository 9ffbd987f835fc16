"""One step of a model, traced from shapes alone: tokens in, tokens out, pages donated.

Creates no arrays: a lowered step runs on this process's devices, or is compiled for devices
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from model_server.engine.buckets import Bucket
from model_server.engine.compiling import options_for
from model_server.engine.sampler import RowSampling, sample
from model_server.engine.slot_state import (
    RowEdits,
    SlotState,
    edit_logits,
    note_tokens,
    state_shapes,
    unpack,
    write_slot,
)
from model_server.engine.slot_write import WriteLayout
from model_server.engine.step_arrays import ColumnLayout
from model_server.engine.types import EngineLimits
from model_server.kernels.paged import Kernel, KernelRefusal, PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.sequence_sharding import SequenceSharding
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


_PLACES = ("pages", "offsets", "decode_tables", "decode_limits", "block_tables", "block_limits")


class PagedModel(Protocol):
    """Interface of a model family, as the runner needs it."""

    def __call__(
        self,
        tokens: jax.Array,  # i32[T]
        positions: jax.Array,  # i32[T]
        pages: Sequence[LayerPages],
        batch: PagedBatch,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]: ...

    def logits(self, hidden: jax.Array) -> jax.Array: ...


class Outputs(NamedTuple):
    """Step outputs that are copied to the host."""

    numbers: jax.Array  # i32[2, R]: tokens, and log-probabilities as bits
    top_tokens: jax.Array  # i32[R, 20]
    top_logprobs: jax.Array  # f32[R, 20]


class StepProgram:
    """Lowers the steps of a model, or of one pipeline stage; one program per bucket."""

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
    ) -> None:
        """stage: None: all layers. embed: width of the hidden states that stages pass on."""
        self._blueprint = blueprint
        self._kernel = kernel
        self._split = split
        self.limits = limits
        self.stage = stage
        self.embed = embed
        self.leaves = tuple(map(byte_shape, leaves))
        self.factors = blueprint.factors  # indices of the leaves that hold adapters
        self.pages = jax.tree.map(shape_of, tuple(pages))
        self.everywhere = everywhere(leaves[0].sharding)
        self.vocab = vocab
        # None: this stage chooses no tokens.
        self.state = None
        if stage is None or stage.is_last:
            self.state = state_shapes(limits, vocab, self.everywhere)

    def lower(self, bucket: Bucket) -> jax.stages.Lowered:
        """Trace the step of one bucket for the devices that the shapes are sharded over.

        Raises MemoryPlanError for shapes that the kernel does not support.
        """
        layout = ColumnLayout(bucket, self.limits)
        held = (self.pages,) if self.state is None else (self.pages, self.state)
        given = [self._input((layout.size,), jnp.int32)]
        if self.stage and not self.stage.is_first:
            given.append(self._input((layout.tokens, self.embed), jnp.float32))
        jitted = jax.jit(
            self._trace_stage(layout, self.stage) if self.stage else self._trace(layout),
            donate_argnums=tuple(range(1, 1 + len(held))),
            # Every device samples the same tokens, every host of a stage passes on its own copy of
            # the hidden states; pages stay where they are.
            out_shardings=(self.everywhere, *jax.tree.map(lambda array: array.sharding, held)),
            compiler_options=options_for(self.everywhere),
        )
        with told_as_plan_error(str(bucket)):
            return jitted.lower(self.leaves, *held, *given)

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

    def _input(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.everywhere)

    def _opened(
        self, layout: ColumnLayout, leaves: Any, vector: jax.Array
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Return the model, with the adapter of each of the step's tokens, and the step's parts."""
        model, parts = self._blueprint.assemble(leaves), unpack(layout.parts, vector)
        if "adapters" in parts:
            choose_adapters(model, parts["adapters"], self.limits.adapters)
        return model, parts

    def _trace(self, layout: ColumnLayout) -> Callable[..., Any]:
        def step(leaves: Any, pages: Any, state: SlotState, vector: jax.Array) -> Any:
            model, parts = self._opened(layout, leaves, vector)
            return run_step(model, pages, state, parts, self._kernel, self._split)

        return step

    def _trace_stage(self, layout: ColumnLayout, stage: Stage) -> Callable[..., Any]:
        def middle(leaves: Any, pages: Any, vector: jax.Array, *given: jax.Array) -> Any:
            model, parts = self._opened(layout, leaves, vector)
            return run_stage(model, stage, pages, parts, self._kernel, self._split, *given)

        def last(
            leaves: Any, pages: Any, state: SlotState, vector: jax.Array, hidden: jax.Array
        ) -> Any:
            model, parts = self._opened(layout, leaves, vector)
            made, written = run_stage(model, stage, pages, parts, self._kernel, self._split, hidden)
            outputs, state = chosen(model, model.final_norm(made), state, parts)
            return outputs, written, state

        return last if stage.is_last else middle


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


def run_step(
    model: PagedModel,
    pages: Sequence[LayerPages],
    state: SlotState,
    step: dict[str, jax.Array],
    kernel: Kernel,
    split: SequenceSharding | None = None,
) -> tuple[Outputs, tuple[LayerPages, ...], SlotState]:
    decodes = step["decode_slots"].shape[0]
    fed = state.last_tokens.at[step["decode_slots"]].get(mode="promise_in_bounds")
    tokens = jnp.concatenate([fed, step["tokens"][decodes:]])
    hidden, written = model(tokens, step["positions"], pages, paged_batch(step, kernel, split))
    outputs, state = chosen(model, hidden, state, step)
    return outputs, written, state


def run_stage(
    model: Any,
    stage: Stage,
    pages: Sequence[LayerPages],
    step: dict[str, jax.Array],
    kernel: Kernel,
    split: SequenceSharding | None,
    hidden: jax.Array | None = None,  # f32[T, D]; None on the first stage
) -> tuple[jax.Array, tuple[LayerPages, ...]]:
    """Trace one stage of one step: hidden states to pass on, or to choose tokens from.

    On the first stage every token comes from the step itself.
    """
    positions = step["positions"]
    x = model.embed(step["tokens"], positions) if hidden is None else hidden
    return model.run(x, positions, pages, paged_batch(step, kernel, split))


def paged_batch(
    step: dict[str, jax.Array], kernel: Kernel, split: SequenceSharding | None
) -> PagedBatch:
    return PagedBatch(**{field: step[field] for field in _PLACES}, kernel=kernel, split=split)


def chosen(
    model: PagedModel, hidden: jax.Array, state: SlotState, step: dict[str, jax.Array]
) -> tuple[Outputs, SlotState]:
    """Sample the tokens of the rows that yield, from the final hidden states f32[T, D]."""
    rows = hidden.at[step["row_index"]].get(mode="promise_in_bounds")
    logits, edits = model.logits(rows), _row_edits(step)
    sampled = sample(logits, _row_sampling(step), edit_logits(logits, state, edits))
    bits = jax.lax.bitcast_convert_type(sampled.logprobs, jnp.int32)
    numbers = jnp.stack([sampled.tokens, bits])
    outputs = Outputs(numbers, sampled.top_tokens, sampled.top_logprobs)
    return outputs, note_tokens(state, edits, sampled.tokens)


def _floats(bits: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _row_edits(step: dict[str, jax.Array]) -> RowEdits:
    return RowEdits(
        slot=step["row_slot"],
        position=step["row_position"],
        kinds=step["edits"],
        presence=_floats(step["presence_penalty"]),
        frequency=_floats(step["frequency_penalty"]),
        repetition=_floats(step["repetition_penalty"]),
    )


def _row_sampling(step: dict[str, jax.Array]) -> RowSampling:
    seed = jnp.stack([step["seed_high"], step["seed_low"]], axis=-1)
    return RowSampling(
        temperature=_floats(step["temperature"]),
        top_k=step["top_k"],
        top_p=_floats(step["top_p"]),
        min_p=_floats(step["min_p"]),
        typical_p=_floats(step["typical_p"]),
        seed=jax.lax.bitcast_convert_type(seed, jnp.uint32),
        position=step["row_position"],
        target=step["target"],
        tops=step["tops"],
    )
