"""Runs steps on this process's devices: pad to a bucket, compute logits, choose tokens.

A compiled call cannot compile again. What a model has beside its steps are parts (an encoder, a
draft model, room for adapters, pages that move): each brings the ops that it does, and hooks into
the steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from model_server.engine.buckets import Bucket, choose
from model_server.engine.column_layout import ColumnLayout
from model_server.engine.running.ops import DONE, Choose, Op, Pending
from model_server.engine.running.row_details import scored, top_of, with_routes
from model_server.engine.running.runner_part import Prepare, RunnerPart
from model_server.engine.slot_state import SlotState
from model_server.engine.slot_write import pack, pack_masks
from model_server.engine.step_arrays import StepArrays
from model_server.engine.step_functions import Computed, Outputs
from model_server.engine.step_program import (
    COPIES,
    COPY,
    WRITE,
    StepProgram,
    choice_name,
    masks_name,
    series_name,
)
from model_server.engine.types import RowResult, SlotMask, SlotSampling, Step, StepResult
from model_server.kernels.local_devices import zeros_from_host
from model_server.kernels.pages import LayerPages
from model_server.models.weights.quantized import as_bytes


def zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    return zeros_from_host(shape.shape, shape.dtype, shape.sharding)


def batches_of(copies: Sequence[tuple[int, ...]], width: int) -> Iterator[np.ndarray]:
    """Yield i32[COPIES, width]: copies for one call, padded with scratch pages."""
    for first in range(0, len(copies), COPIES):
        pairs = np.zeros((COPIES, width), np.int32)
        few = copies[first : first + COPIES]
        pairs[: len(few)] = few
        yield pairs


class CompiledSteps:
    """A model, or one pipeline stage, on its devices, with a program per bucket."""

    def __init__(
        self,
        program: StepProgram,
        leaves: Sequence[jax.Array],
        pages: Sequence[LayerPages],
        buckets: Sequence[Bucket],
        parts: Sequence[RunnerPart[Any]] = (),
    ) -> None:
        self.program = program
        self.limits = limits = program.limits
        self._buckets = tuple(buckets)
        # A flat tuple of arrays is passed to a compiled call much faster than a module.
        self._leaves: tuple[jax.Array, ...] = tuple(map(as_bytes, leaves))
        # Every call donates and replaces these two; between steps a part may replace them too.
        self.pages = tuple(pages)
        self.state: SlotState | None = jax.tree.map(zeros, program.state)
        self._no_tokens = zeros(program.last_tokens) if program.state is None else None
        self.held = threading.Lock()  # while a call donates and replaces them
        self.arrays = StepArrays(limits)
        self._tops = [0] * limits.slots
        self.layouts = {bucket: ColumnLayout(bucket, limits) for bucket in self._buckets}
        self.compiled: dict[str, Any] = {}  # by name
        self._unchosen: tuple[Launched, Computed] | None = None  # a step that waits for masks
        self._sharers = {id(self)}  # runners that are not closed and have the same weights
        self.closed = False
        self.parts = tuple(parts)
        self._prepares: dict[type[Op], Prepare] = {Choose: lambda op: partial(self._choose, op)}
        self.ops: dict[type[Op], Mapping[int, float]] = {Choose: {}}
        for part in self.parts:
            brought = part.join(self)
            self._prepares |= brought
            self.ops |= {kind: part.seconds.get(kind, {}) for kind in brought}

    @property
    def last_tokens(self) -> jax.Array:
        """The slots' last tokens, i32[B + 1]; zeros on a stage that chooses none."""
        last = self._no_tokens if self.state is None else self.state.last_tokens
        assert last is not None
        return last

    def launch(self, *steps: Step) -> Launched:
        first = steps[0]
        for change in first.samplings:
            self._tops[change.slot] = change.sampling.logprobs
        # Let go of together, at the end: behind a proxy each time is a request.
        replaced = self.pages, self.state
        bucket = self.bucket(first)
        layout = self.layouts[bucket]
        packed = [self.arrays.pack(step, layout) for step in steps]
        vectors, ranges = [vector for vector, _ in packed], [places for _, places in packed]
        self.write(self.packed_writes(first))
        self.copy(first.copies)
        tops = [self._tops[row.slot] for row in first.rows]
        launched = Launched(steps, ranges, tops, layout=layout)
        if len(steps) > 1:
            launched.chosen(self._series(bucket, np.stack(vectors)))
        elif first.guided:
            self._unchosen = launched, self.forward(bucket, vectors[0])
        else:
            launched.chosen(self.chosen(self.forward(bucket, vectors[0])))
        del replaced
        return launched

    def _series(self, bucket: Bucket, vectors: np.ndarray) -> Outputs:
        with self.held:
            call = self.compiled[series_name(bucket)]
            outputs, self.pages, self.state = call(self._leaves, self.pages, vectors, self.state)
        return outputs

    def do(self, op: Op) -> Pending[Any]:
        return self.prepared(op)()

    def prepared(self, op: Op) -> Callable[[], Pending[Any]]:
        """Take what an op needs of now; returns what does it, behind the launches so far.

        Raises KeyError for an op that no part does.
        """
        return self._prepares[type(op)](op)

    def _choose(self, op: Choose) -> Pending[None]:
        assert self._unchosen is not None, "the last step was not guided"
        (launched, made), self._unchosen = self._unchosen, None
        self.write_masks(op.masks, made.logits.shape[0])
        launched.chosen(self.chosen(made))
        return DONE

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
            with self.held:
                self.state = self.compiled[WRITE](self.state, vector)

    def copy(self, copies: Sequence[tuple[int, ...]]) -> None:
        """Copy pages, each to another, before a step that writes to the copies."""
        for pairs in batches_of(copies, self.program.copied):
            with self.held:
                self.pages = self.compiled[COPY](self.pages, pairs)
        for part in self.parts:
            part.copy(copies)

    def write_masks(self, masks: Sequence[SlotMask], rows: int) -> None:
        """Write the masks of a step with this many logit rows."""
        vector = pack_masks(masks, rows, self.limits.slots, self.program.vocab)
        with self.held:
            self.state = self.compiled[masks_name(rows)](self.state, vector)

    def forward(self, bucket: Bucket, vector: np.ndarray, given: Any = None) -> Any:
        """Run the forward pass; returns `Computed`, or hidden states f32[T, D] for the next stage.

        given: hidden states of the previous stage; the first stage of several may be given the
        slots' last tokens, i32[B + 1]: without, its decode rows take their tokens from the vector.
        """
        with self.held:
            given = self.last_tokens if given is None else given
            call = self.compiled[str(bucket)]
            more = [array for part in self.parts for array in part.inputs(bucket)]
            made, self.pages, *shown = call(self._leaves, self.pages, vector, given, *more)
        for part in self.parts:
            part.follow(bucket, vector, self.last_tokens, *shown)
        return made

    def chosen(self, computed: Computed) -> Outputs:
        """Choose a token for each row of logits; the next forward pass takes it from the device."""
        with self.held:
            call = self.compiled[choice_name(computed.logits.shape[0])]
            outputs, self.state = call(computed._replace(routes=None), self.state)
        return outputs._replace(routes=computed.routes)


_NO_RESULT = RowResult()


class Launched:
    """The steps of one launch; `result` waits for the device."""

    def __init__(
        self,
        steps: Sequence[Step],
        ranges: Sequence[Sequence[tuple[int, int]]],
        tops: Sequence[int],
        outputs: Outputs | None = None,
        layout: ColumnLayout | None = None,
    ) -> None:
        """ranges: of each step, the first logit row of each row and the one behind its last.

        tops: how many likeliest tokens each row returns, of every step. outputs: with a first axis
        of steps if there are several; None until the tokens are chosen. layout: for `Row.routes`.
        """
        self._layout = layout
        self._steps = steps
        self._ranges = ranges
        self._tops = tops
        self._outputs = outputs

    def chosen(self, outputs: Outputs) -> None:
        """Take note of what is computed, and begin to copy what `result` will read."""
        self._outputs = outputs
        rows = (row for step in self._steps for row in step.rows)
        rivals = any(self._tops) or any(row.target_tops for row in rows)
        for array in outputs[:3] if rivals else outputs[:1]:
            array.copy_to_host_async()
        if outputs.routes is not None and any(row.routes for row in self._steps[0].rows):
            outputs.routes.copy_to_host_async()

    def result(self) -> list[StepResult]:
        assert self._outputs is not None, "its tokens were not chosen"
        if len(self._steps) == 1:
            return [self._of(self._steps[0], self._ranges[0], self._outputs)]
        each = enumerate(zip(self._steps, self._ranges, strict=True))
        return [self._of(*told, _of_step(self._outputs, index)) for index, told in each]

    def _of(self, step: Step, ranges: Sequence[tuple[int, int]], outputs: Outputs) -> StepResult:
        numbers = np.asarray(outputs.numbers)
        tokens = numbers[0].tolist()
        logprobs = numbers[1].view(np.float32).tolist()
        rows = []
        for row, (first, end), tops in zip(step.rows, ranges, self._tops, strict=True):
            result = scored(outputs, row, first, numbers) if row.targets else _NO_RESULT
            if row.yields:
                top = top_of(outputs, end - 1, tops) if tops else ()
                result = RowResult(
                    tokens[end - 1], logprobs[end - 1], top, result.target_logprobs,
                    result.target_ranks, result.target_tops,
                )  # fmt: skip
            rows.append(result)
        if outputs.routes is not None and any(row.routes for row in step.rows):
            assert self._layout is not None, "rows ask for their experts"
            rows = with_routes(step, rows, self._layout, outputs.routes)
        return StepResult(step.number, tuple(rows))


class _PartOfArray:
    """One entry of an array that is copied to the host as a whole, once."""

    def __init__(self, whole: jax.Array, index: int) -> None:
        self._whole = whole
        self._index = index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(np.asarray(self._whole)[self._index], dtype)


def _of_step(outputs: Outputs, index: int) -> Outputs:
    """Return the outputs of one step of a series."""
    every: Any = [array if array is None else _PartOfArray(array, index) for array in outputs]
    return Outputs(*every)
