"""Runs steps on this process's devices: pad to a bucket, compute logits, choose tokens.

Every program is compiled before the first step; a compiled call cannot compile again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol, Self

import jax
import numpy as np

from model_server.engine.buckets import Bucket, choose
from model_server.engine.compiling import COMPILED_HERE, Programs, compiled_in_turn
from model_server.engine.media.encode_batch import (
    EncodeBatch,
    EncoderInput,
    empty_input,
    pack_batch,
)
from model_server.engine.media.encoder_program import encode_name
from model_server.engine.slot_state import SlotState
from model_server.engine.slot_write import pack, pack_masks
from model_server.engine.step_arrays import ColumnLayout, StepArrays
from model_server.engine.step_functions import Computed, Outputs
from model_server.engine.step_program import (
    ADAPTER,
    COPIES,
    COPY,
    WRITE,
    StepProgram,
    choice_name,
    masks_name,
    series_name,
)
from model_server.engine.types import (
    PendingStep,
    Row,
    RowResult,
    Sampling,
    SlotMask,
    SlotSampling,
    Step,
    StepResult,
    Top,
)
from model_server.kernels.local_devices import full
from model_server.kernels.pages import LayerPages
from model_server.models.weights.quantized import as_bytes
from model_server.sharing.freeing import drop, free
from sax.types import Progress

_NO_RESULT = RowResult()
_NO_EDITS = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


def zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    return full(shape.shape, 0, shape.dtype, shape.sharding)


def _copied_zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    """Zeros from the host, as factors come: a stage's thread may compile nothing."""
    sharding: Any = shape.sharding
    part = np.zeros(sharding.shard_shape(shape.shape), shape.dtype)
    return jax.make_array_from_callback(shape.shape, sharding, lambda _: part)


def batches_of(copies: Sequence[tuple[int, ...]], width: int) -> Iterator[np.ndarray]:
    """Yield i32[COPIES, width]: copies for one call, padded with scratch pages."""
    for first in range(0, len(copies), COPIES):
        pairs = np.zeros((COPIES, width), np.int32)
        few = copies[first : first + COPIES]
        pairs[: len(few)] = few
        yield pairs


class Launched:
    """A launched step; `result` waits for the device."""

    def __init__(
        self,
        step: Step,
        ranges: list[tuple[int, int]],
        tops: list[int],
        outputs: Outputs | None = None,
    ) -> None:
        """outputs: None until the tokens are chosen."""
        self._step = step
        self.outputs = outputs
        self._ranges = ranges
        self._tops = tops

    def chosen(self, outputs: Outputs) -> None:
        """Take note of what is computed, and begin to copy what `result` will read."""
        self.outputs = outputs
        rivals = any(self._tops) or any(row.target_tops for row in self._step.rows)
        for array in outputs if rivals else outputs[:1]:
            array.copy_to_host_async()

    def result(self) -> StepResult:
        assert self.outputs is not None, "its tokens were not chosen"
        numbers = np.asarray(self.outputs.numbers)
        tokens = numbers[0].tolist()
        logprobs = numbers[1].view(np.float32).tolist()
        rows = []
        for row, (first, end), tops in zip(self._step.rows, self._ranges, self._tops, strict=True):
            result = _scored(self.outputs, row, first, numbers) if row.targets else _NO_RESULT
            if row.yields:
                top = _top(self.outputs, end - 1, tops) if tops else ()
                result = RowResult(
                    tokens[end - 1], logprobs[end - 1], top, result.target_logprobs,
                    result.target_ranks, result.target_tops,
                )  # fmt: skip
            rows.append(result)
        return StepResult(self._step.number, tuple(rows))


def _scored(outputs: Outputs, row: Row, first: int, numbers: np.ndarray) -> RowResult:
    end = first + len(row.targets)
    logprobs = tuple(numbers[1, first:end].view(np.float32).tolist())
    if row.target_tops is None:
        return RowResult(target_logprobs=logprobs)
    tops = tuple(_top(outputs, each, row.target_tops) for each in range(first, end))
    return RowResult(
        target_logprobs=logprobs,
        target_ranks=tuple(numbers[2, first:end].tolist()),
        target_tops=tops,
    )


def _top(outputs: Outputs, row: int, count: int) -> Top:
    tokens = np.asarray(outputs.top_tokens)[row, :count].tolist()
    logprobs = np.asarray(outputs.top_logprobs)[row, :count].tolist()
    return tuple(zip(tokens, logprobs, strict=True))


class _PartOfArray:
    """One entry of an array that is copied to the host as a whole, once."""

    def __init__(self, whole: jax.Array, index: int) -> None:
        self._whole = whole
        self._index = index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(np.asarray(self._whole)[self._index], dtype)


def _of_step(outputs: Outputs, index: int) -> Outputs:
    """Return the outputs of one step of a series."""
    every: Any = [_PartOfArray(array, index) for array in outputs]
    return Outputs(*every)


class AdapterFiles(Protocol):
    """Adapters that were read from their files and not written yet. Thread-safe."""

    def read(self, key: str, path: str) -> None: ...

    def forget(self, key: str) -> None: ...

    def take(self, key: str) -> Sequence[jax.Array]: ...


class ModelRunner:
    """The real Runner: a model, or one pipeline stage, on its devices, with compiled buckets."""

    def __init__(
        self,
        program: StepProgram,
        leaves: Sequence[jax.Array],
        pages: Sequence[LayerPages],
        buckets: Sequence[Bucket],
        adapters: AdapterFiles | None = None,
        encoder_leaves: Sequence[jax.Array] = (),
    ) -> None:
        """encoder_leaves: the weights of `program.encoder`."""
        self.program = program
        self.limits = limits = program.limits
        self._buckets = tuple(buckets)
        # A flat tuple of arrays is passed to a compiled call much faster than a module.
        self._leaves = tuple(map(as_bytes, leaves))
        # Every call donates and replaces these two; between steps a wrapper may replace them too.
        self.pages = tuple(pages)
        self.state: SlotState | None = jax.tree.map(zeros, program.state)
        self._no_tokens = zeros(program.last_tokens) if program.state is None else None
        self._encoder_leaves = tuple(map(as_bytes, encoder_leaves))
        # Vectors of media, which batches of the encoder replace; None: it takes text alone.
        self._media = None if program.encoder is None else zeros(program.encoder.buffer)
        self._held = threading.Lock()  # while a call donates and replaces them
        self._arrays = StepArrays(limits)
        self._tops = [0] * limits.slots
        self.layouts = {bucket: ColumnLayout(bucket, limits) for bucket in self._buckets}
        self.adapters = adapters  # None: the model has no room for any
        self._compiled: dict[str, Any] = {}  # by name
        self._unchosen: tuple[Launched, Computed] | None = None  # a step that waits for masks
        self._sharers = {id(self)}  # runners that are not closed and have the same weights
        self.closed = False

    @property
    def leaves(self) -> tuple[jax.Array, ...]:
        """The weights; other programs may read them until `close`."""
        return self._leaves

    @property
    def last_tokens(self) -> jax.Array:
        """The slots' last tokens, i32[B + 1]; zeros on a stage that chooses none."""
        last = self._no_tokens if self.state is None else self.state.last_tokens
        assert last is not None
        return last

    @property
    def weight_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in (*self._leaves, *self._encoder_leaves))

    def compile(
        self, report: Callable[[Progress], None], programs: Programs = COMPILED_HERE
    ) -> None:
        """Compile every program. Nothing runs yet: `warm` does that."""

        lowers = self.program.programs(self._buckets)
        report(Progress("compiling bucket", 0, len(lowers)))
        names = list(lowers)
        with closing(
            compiled_in_turn(names, lambda name: programs.compiled(name, lowers[name]))
        ) as made:
            for done, (name, program) in enumerate(made, 1):
                self._compiled[name] = program
                report(Progress("compiling bucket", done, len(lowers)))

    def sibling(self, pages: Sequence[Any]) -> Self:
        """Return a runner with slots and pages of its own, and the weights and programs of this.

        For a model without room for adapters.
        """
        encoder = self._encoder_leaves
        made = type(self)(self.program, self._leaves, pages, self._buckets, encoder_leaves=encoder)
        self._share_with(made)
        return made

    def _share_with(self, other: ModelRunner) -> None:
        assert self.adapters is None, "adapters are written into one runner's weights"
        other._compiled = dict(self._compiled)
        other._sharers = self._sharers
        self._sharers.add(id(other))

    @property
    def warmups(self) -> int:
        return len(self._buckets) + len(self.program.series_of(self._buckets)) + self.encodes

    def warm(self, index: int) -> None:
        series = self.program.series_of(self._buckets)
        if index >= len(self._buckets) + len(series):
            self.warm_encode(index - len(self._buckets) - len(series))
            return
        if index >= len(self._buckets):
            self._warm_series(series[index - len(self._buckets)])
            return
        bucket = self._buckets[index]
        vector = self._arrays.full(self.layouts[bucket])
        self.warm_write()
        self.warm_copy()
        self.warm_adapters()
        made = self.forward(bucket, vector)
        self.write_masks((), self.layouts[bucket].logit_rows)
        jax.block_until_ready(self.chosen(made))

    def _warm_series(self, bucket: Bucket) -> None:
        vector = self._arrays.full(self.layouts[bucket])
        vectors = np.stack([vector] * self.limits.steps_per_launch)
        jax.block_until_ready(self._series(bucket, vectors))

    @property
    def encodes(self) -> int:
        """Number of indices for `warm_encode`."""
        encoder = self.program.encoder
        return 0 if encoder is None else len(encoder.limits.batches)

    def warm_encode(self, index: int) -> None:
        """Run the encoder once, and keep its vectors nowhere."""
        assert self.program.encoder is not None, "it has none to warm"
        limits = self.program.encoder.limits
        shape = limits.batches[index]
        self._encode(shape, empty_input(limits, *shape))
        jax.block_until_ready(self._media)

    def warm_write(self) -> None:
        """Write the scratch slot, if this runner chooses tokens."""
        if self.state is not None:
            self.write([self._packed(SlotSampling(self.limits.slots, _NO_EDITS))])

    def warm_copy(self) -> None:
        """Copy the scratch page onto itself."""
        self.copy([(0,) * self.program.copied])

    def launch(self, step: Step) -> PendingStep:
        for change in step.samplings:
            self._tops[change.slot] = change.sampling.logprobs
        # Let go of together, at the end: behind a proxy each time is a request.
        replaced = self.pages, self.state
        bucket = self.bucket(step)
        vector, ranges = self._arrays.pack(step, self.layouts[bucket])
        self.write(self.packed_writes(step))
        self.copy(step.copies)
        made = self.forward(bucket, vector)
        launched = Launched(step, ranges, [self._tops[row.slot] for row in step.rows])
        if step.guided:
            self._unchosen = launched, made
        else:
            launched.chosen(self.chosen(made))
        del replaced, made
        return launched

    def launch_series(self, steps: Sequence[Step]) -> Sequence[PendingStep]:
        first = steps[0]
        for change in first.samplings:
            self._tops[change.slot] = change.sampling.logprobs
        replaced = self.pages, self.state  # as in `launch`
        bucket = self.bucket(first)
        packed = [self._arrays.pack(step, self.layouts[bucket]) for step in steps]
        self.write(self.packed_writes(first))
        self.copy(first.copies)
        outputs = self._series(bucket, np.stack([vector for vector, _ in packed]))
        tops = [self._tops[row.slot] for row in first.rows]
        launched = [
            Launched(step, ranges, tops, _of_step(outputs, index))
            for index, (step, (_, ranges)) in enumerate(zip(steps, packed, strict=True))
        ]
        for array in outputs if any(tops) else outputs[:1]:
            array.copy_to_host_async()
        del replaced
        return launched

    def _series(self, bucket: Bucket, vectors: np.ndarray) -> Outputs:
        with self._held:
            call = self._compiled[series_name(bucket)]
            outputs, self.pages, self.state = call(self._leaves, self.pages, vectors, self.state)
        return outputs

    def encode(self, batch: EncodeBatch) -> None:
        """Launch a batch of the encoder; as `MediaRunner.encode`."""
        assert self.program.encoder is not None, "the scheduler knows that it has none"
        limits = self.program.encoder.limits
        self._encode(batch.shape(limits), pack_batch(batch, limits))

    def _encode(self, shape: tuple[int, int], given: EncoderInput) -> None:
        with self._held:
            call = self._compiled[encode_name(*shape)]
            self._media = call(self._encoder_leaves, self._media, *given)

    def choose(self, masks: Sequence[SlotMask]) -> None:
        assert self._unchosen is not None, "the last step was not guided"
        (launched, made), self._unchosen = self._unchosen, None
        self.write_masks(masks, made.logits.shape[0])
        launched.chosen(self.chosen(made))

    def bucket(self, step: Step) -> Bucket:
        decodes = sum(row.is_decode for row in step.rows)
        block = self.limits.prefill_block
        blocks = sum(-(-row.count // block) for row in step.rows if not row.is_decode)
        return choose(self._buckets, decodes, blocks, block)

    def packed_writes(self, step: Step) -> list[np.ndarray]:
        """Return the vectors for `write` of the sequences with edits that take a slot."""
        return [self._packed(change) for change in step.samplings if change.sampling.edits]

    def _packed(self, change: SlotSampling) -> np.ndarray:
        return pack(change, self.limits, self.program.vocab)

    def write(self, vectors: Sequence[np.ndarray]) -> None:
        """Write the edits of slots, before the step in which their sequences begin."""
        for vector in vectors:
            with self._held:
                self.state = self._compiled[WRITE](self.state, vector)

    def copy(self, copies: Sequence[tuple[int, ...]]) -> None:
        """Copy pages, each to another, before a step that writes to the copies."""
        for pairs in batches_of(copies, self.program.copied):
            with self._held:
                self.pages = self._compiled[COPY](self.pages, pairs)

    def write_masks(self, masks: Sequence[SlotMask], rows: int) -> None:
        """Write the masks of a step with this many logit rows."""
        vector = pack_masks(masks, rows, self.limits.slots, self.program.vocab)
        with self._held:
            self.state = self._compiled[masks_name(rows)](self.state, vector)

    def forward(self, bucket: Bucket, vector: np.ndarray, given: Any = None) -> Any:
        """Run the forward pass; returns `Computed`, or hidden states f32[T, D] for the next stage.

        given: hidden states of the previous stage; the first stage of several may be given the
        slots' last tokens, i32[B + 1]: without, its decode rows take their tokens from the vector.
        """
        with self._held:
            given = self.last_tokens if given is None else given
            call = self._compiled[str(bucket)]
            media = (self._media,) if self.program.reads_media(bucket) else ()
            made, self.pages = call(self._leaves, self.pages, vector, given, *media)
        return made

    def chosen(self, computed: Computed) -> Outputs:
        """Choose a token for each row of logits; the next forward pass takes it from the device."""
        with self._held:
            call = self._compiled[choice_name(computed.logits.shape[0])]
            outputs, self.state = call(computed, self.state)
        return outputs

    def warm_adapters(self) -> None:
        """Write zeros into the first place, if there is room for adapters."""
        if self.adapters is not None:
            self._put([_copied_zeros(shape) for shape in self.program.adapter_shapes], 1)

    def read_adapter(self, key: str, path: str) -> None:
        """Read an adapter for a later `write_adapter`, in any thread. Raises CheckpointError."""
        self._with_room.read(key, path)

    def forget_adapter(self, key: str) -> None:
        """Drop an adapter that will not be written."""
        self._with_room.forget(key)

    def write_adapter(self, key: str, place: int) -> None:
        """Put an adapter that was read into its place, from 1 on; later steps see it there."""
        self._put(self._with_room.take(key), place)

    def _put(self, given: Sequence[jax.Array], place: int) -> None:
        """Replace the factors in a place, in the order of `StepProgram.factors`; donates them."""
        factors = self.program.factors
        with self._held:
            held = list(self._leaves)
            old = tuple(held[index] for index in factors)
            made = self._compiled[ADAPTER](old, tuple(given), np.int32(place - 1))
            for index, array in zip(factors, made, strict=True):
                held[index] = array
            self._leaves = tuple(held)

    @property
    def _with_room(self) -> AdapterFiles:
        assert self.adapters is not None, "the loader checks for room"
        return self.adapters

    def close(self) -> None:
        """Free device memory; a call of another thread gets an error."""
        with self._held:
            self.closed = True
            self._sharers.discard(id(self))
            leaves = () if self._sharers else (*self._leaves, *self._encoder_leaves)
            held = (leaves, self.pages, self.state, self._no_tokens, self._media)
            arrays: list[jax.Array] = jax.tree.leaves(held)
            self._leaves, self._encoder_leaves, self.pages = (), (), ()
            free(arrays)
            drop(self._compiled)
