"""Runs steps on this process's devices: pad to a bucket, compute logits, choose tokens.

Every program is compiled before the first step; a compiled call cannot compile again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Protocol

import jax
import numpy as np

from model_server.engine.buckets import Bucket, choose
from model_server.engine.compiling import COMPILED_HERE, Programs, compiled_in_turn
from model_server.engine.slot_state import SlotState
from model_server.engine.slot_write import pack
from model_server.engine.step_arrays import ColumnLayout, StepArrays, row_counts
from model_server.engine.step_program import Computed, Outputs, StepProgram
from model_server.engine.types import (
    PendingStep,
    RowResult,
    Sampling,
    SlotSampling,
    Step,
    StepResult,
)
from model_server.kernels.local_devices import full
from model_server.kernels.pages import LayerPages
from model_server.models.weights.quantized import as_bytes
from sax.types import Progress


def free(arrays: list[jax.Array]) -> None:
    """Empty the list and free the memory, even of arrays that others still reference."""
    held = [weakref.ref(array) for array in arrays]
    arrays.clear()
    for each in held:
        if (array := each()) is not None and not array.is_deleted():
            array.delete()


WRITE = "write a slot"  # the name of a program beside those of the buckets
_NO_EDITS = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


def choice_name(rows: int) -> str:
    """Name the program that chooses tokens from this many rows of logits."""
    return f"choice of {rows} tokens"


def _zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    return full(shape.shape, 0, shape.dtype, shape.sharding)


class Launched:
    """A launched step; `result` waits for the device."""

    def __init__(
        self, step: Step, outputs: Outputs, ranges: list[tuple[int, int]], tops: list[int]
    ):
        self._step = step
        self._outputs = outputs
        self._ranges = ranges
        self._tops = tops

    def result(self) -> StepResult:
        numbers = np.asarray(self._outputs.numbers)
        tokens = numbers[0].tolist()
        logprobs = numbers[1].view(np.float32).tolist()
        rows = []
        for row, (first, end), tops in zip(self._step.rows, self._ranges, self._tops, strict=True):
            if row.targets:
                rows.append(RowResult(target_logprobs=tuple(logprobs[first:end])))
            elif row.yields:
                top = self._top(first, tops) if tops else ()
                rows.append(RowResult(token=tokens[first], logprob=logprobs[first], top=top))
            else:
                rows.append(RowResult())
        return StepResult(self._step.number, tuple(rows))

    def _top(self, row: int, count: int) -> tuple[tuple[int, float], ...]:
        tokens = np.asarray(self._outputs.top_tokens)[row, :count].tolist()
        logprobs = np.asarray(self._outputs.top_logprobs)[row, :count].tolist()
        return tuple(zip(tokens, logprobs, strict=True))


class WeightChanges(Protocol):
    """Changes of a model's weights between steps: adapters that come into memory."""

    def compile(self, programs: Programs) -> None: ...

    def read(self, key: str, path: str) -> None: ...

    def forget(self, key: str) -> None: ...

    def warmed(self, leaves: Sequence[jax.Array]) -> tuple[jax.Array, ...]: ...

    def written(
        self, leaves: Sequence[jax.Array], key: str, place: int
    ) -> tuple[jax.Array, ...]: ...


class ModelRunner:
    """The real Runner: a model, or one pipeline stage, on its devices, with compiled buckets."""

    def __init__(
        self,
        program: StepProgram,
        leaves: Sequence[jax.Array],
        pages: Sequence[LayerPages],
        buckets: Sequence[Bucket],
        adapters: WeightChanges | None = None,
    ) -> None:
        self.program = program
        self.limits = limits = program.limits
        self._buckets = tuple(buckets)
        # A flat tuple of arrays is passed to a compiled call much faster than a module.
        self._leaves = tuple(map(as_bytes, leaves))
        # Every call donates and replaces these two; between steps a wrapper may replace them too.
        self.pages = tuple(pages)
        self.state: SlotState | None = jax.tree.map(_zeros, program.state)
        self._held = threading.Lock()  # while a call donates and replaces them
        self._arrays = StepArrays(limits)
        self._tops = [0] * limits.slots
        self.layouts = {bucket: ColumnLayout(bucket, limits) for bucket in self._buckets}
        self._compiled: dict[Bucket | int, Any] = {}  # int: the choice from so many rows
        self._write: Any = None
        self.adapters = adapters  # None: the model has no room for any
        self.closed = False

    @property
    def weight_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self._leaves)

    def compile(
        self, report: Callable[[Progress], None], programs: Programs = COMPILED_HERE
    ) -> None:
        """Compile every program. Nothing runs yet: `warm` does that."""

        def program_of(shape: Bucket | int) -> Any:
            if isinstance(shape, int):
                return programs.compiled(choice_name(shape), lambda: program.lower_choose(shape))
            return programs.compiled(str(shape), lambda: program.lower(shape))

        program, shapes = self.program, list[Bucket | int](self._buckets)
        if self.state is not None:
            self._write = programs.compiled(WRITE, program.lower_write)
            shapes += row_counts(self._buckets, self.limits)
        if self.adapters is not None:
            self.adapters.compile(programs)
        report(Progress("compiling bucket", 0, len(shapes)))
        with closing(compiled_in_turn(shapes, program_of)) as made:
            for done, (shape, compiled) in enumerate(made, 1):
                self._compiled[shape] = compiled
                report(Progress("compiling bucket", done, len(shapes)))

    @property
    def warmups(self) -> int:
        return len(self._buckets)

    def warm(self, index: int) -> None:
        bucket = self._buckets[index]
        vector, _ = self._arrays.pack(Step(0, ()), self.layouts[bucket])
        self.warm_write()
        self.warm_adapters()
        jax.block_until_ready(self.choose(self.forward(bucket, vector)))

    def warm_write(self) -> None:
        """Write the scratch slot, if this runner chooses tokens."""
        if self._write is not None:
            self.write([self._packed(SlotSampling(self.limits.slots, _NO_EDITS))])

    def launch(self, step: Step) -> PendingStep:
        for change in step.samplings:
            self._tops[change.slot] = change.sampling.logprobs
        bucket = self.bucket(step)
        vector, ranges = self._arrays.pack(step, self.layouts[bucket])
        self.write(self.packed_writes(step))
        outputs = self.choose(self.forward(bucket, vector))
        tops = [self._tops[row.slot] for row in step.rows]
        return Launched(step, outputs, ranges, tops)

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
                self.state = self._write(self.state, vector)

    def forward(self, bucket: Bucket, vector: np.ndarray, hidden: np.ndarray | None = None) -> Any:
        """Run the forward pass; returns `Computed`, or hidden states f32[T, D] for the next stage.

        hidden: from the previous stage; None on the first. Decode rows of a stage take their tokens
        from the vector.
        """
        with self._held:
            given = () if hidden is None else (hidden,)
            if self.program.stage is None:
                assert self.state is not None
                given = (self.state.last_tokens,)
            call = self._compiled[bucket]
            made, self.pages = call(self._leaves, self.pages, vector, *given)
        return made

    def choose(self, computed: Computed) -> Outputs:
        """Choose a token for each row of logits; the next forward pass takes it from the device."""
        with self._held:
            call = self._compiled[computed.logits.shape[0]]
            outputs, self.state = call(computed, self.state)
        return outputs

    def warm_adapters(self) -> None:
        if self.adapters is not None:
            with self._held:
                self._leaves = self.adapters.warmed(self._leaves)

    def read_adapter(self, key: str, path: str) -> None:
        """Read an adapter for a later `write_adapter`, in any thread. Raises CheckpointError."""
        self._with_room.read(key, path)

    def forget_adapter(self, key: str) -> None:
        """Drop an adapter that will not be written."""
        self._with_room.forget(key)

    def write_adapter(self, key: str, place: int) -> None:
        """Put an adapter that was read into its place, from 1 on; later steps see it there."""
        with self._held:
            self._leaves = self._with_room.written(self._leaves, key, place)

    @property
    def _with_room(self) -> WeightChanges:
        assert self.adapters is not None, "the loader checks for room"
        return self.adapters

    def close(self) -> None:
        """Free device memory; a call of another thread gets an error."""
        with self._held:
            self.closed = True
            arrays: list[jax.Array] = jax.tree.leaves((self._leaves, self.pages, self.state))
            self._leaves, self.pages = (), ()
            free(arrays)
            self._compiled.clear()
