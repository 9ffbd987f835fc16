"""Runs steps on this process's devices: pad to a bucket, compute logits, choose tokens.

Every program is compiled before the first step; a compiled call cannot compile again. What a model
has beside its steps are parts (an encoder, a draft model, room for adapters, pages that move): each
brings the ops that it does, and hooks into the steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Self

import jax
import numpy as np

from model_server.engine.buckets import Bucket, choose
from model_server.engine.compiling import COMPILED_HERE, Programs, compiled_in_turn
from model_server.engine.running.launched import Launched
from model_server.engine.running.ops import DONE, Choose, Op, Pending
from model_server.engine.slot_state import SlotState
from model_server.engine.slot_write import pack, pack_masks
from model_server.engine.step_arrays import ColumnLayout, StepArrays
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
from model_server.engine.types import (
    Sampling,
    SlotMask,
    SlotSampling,
    Step,
)
from model_server.kernels.local_devices import full
from model_server.kernels.pages import LayerPages
from model_server.models.weights.quantized import as_bytes
from model_server.sharing.freeing import drop, free
from sax.types import Progress

_NO_EDITS = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


def zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    return full(shape.shape, 0, shape.dtype, shape.sharding)


def batches_of(copies: Sequence[tuple[int, ...]], width: int) -> Iterator[np.ndarray]:
    """Yield i32[COPIES, width]: copies for one call, padded with scratch pages."""
    for first in range(0, len(copies), COPIES):
        pairs = np.zeros((COPIES, width), np.int32)
        few = copies[first : first + COPIES]
        pairs[: len(few)] = few
        yield pairs


# Takes what an op needs of now; returns what does it, on the thread that launches.
Prepare = Callable[[Any], Callable[[], Pending[Any]]]


class RunnerPart:
    """What a runner has beside a model's steps. A hook that is not overridden does nothing."""

    warmups = 0  # indices for `warm`
    seconds: Mapping[type[Op], Mapping[int, float]] = {}  # of its ops, by rows, if `warm` measures

    @property
    def weight_bytes(self) -> int:
        return 0

    @property
    def offer(self) -> str:
        """Address at which other replicas reach what it offers; "": nothing."""
        return ""

    def join(self, runner: ModelRunner) -> Mapping[type[Op], Prepare]:
        """Become a part of this runner; returns what prepares each op that it does."""
        return {}

    def compile(self, report: Callable[[Progress], None], programs: Programs) -> None:
        """Compile the programs that are not among those of the steps."""

    def warm(self, index: int) -> None:
        """Run programs once."""

    def inputs(self, bucket: Bucket) -> Sequence[jax.Array]:
        """Return what a forward pass takes behind everything else."""
        return ()

    def follow(self, bucket: Bucket, vector: np.ndarray, last_tokens: jax.Array) -> None:
        """See a step behind its forward pass; last_tokens: i32[B + 1], as before its choice."""

    def copy(self, copies: Sequence[tuple[int, ...]]) -> None:
        """See pages copied, each to another."""

    def sibling(self) -> RunnerPart:
        """Return the same part, with the same weights, for a sibling of the runner."""
        raise AssertionError("this part is one runner's")

    def close(self, *, shared: bool) -> None:
        """Free device memory, but for the weights if a sibling shares them. Idempotent."""


class ModelRunner:
    """The real Runner: a model, or one pipeline stage, on its devices, with compiled buckets."""

    def __init__(
        self,
        program: StepProgram,
        leaves: Sequence[jax.Array],
        pages: Sequence[LayerPages],
        buckets: Sequence[Bucket],
        parts: Sequence[RunnerPart] = (),
    ) -> None:
        self.program = program
        self.limits = limits = program.limits
        self._buckets = tuple(buckets)
        # A flat tuple of arrays is passed to a compiled call much faster than a module.
        self._leaves = tuple(map(as_bytes, leaves))
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
        own = sum(leaf.nbytes for leaf in self._leaves)
        return own + sum(part.weight_bytes for part in self.parts)

    @property
    def offer(self) -> str:
        """Address at which other replicas reach what a part offers; "": there is none."""
        return next((part.offer for part in self.parts if part.offer), "")

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
                self.compiled[name] = program
                report(Progress("compiling bucket", done, len(lowers)))
        for part in self.parts:
            part.compile(report, programs)

    def sibling(self, pages: Sequence[Any]) -> Self:
        """Return a runner with slots and pages of its own, and the weights and programs of this."""
        parts = [part.sibling() for part in self.parts]
        made = type(self)(self.program, self._leaves, pages, self._buckets, parts)
        self._share_with(made)
        return made

    def _share_with(self, other: ModelRunner) -> None:
        other.compiled = dict(self.compiled)
        other._sharers = self._sharers
        self._sharers.add(id(other))

    @property
    def _own_warmups(self) -> int:
        return len(self._buckets) + len(self.program.series_of(self._buckets))

    @property
    def warmups(self) -> int:
        return self._own_warmups + self.part_warmups

    def warm(self, index: int) -> None:
        if index >= self._own_warmups:
            self.warm_part(index - self._own_warmups)
            return
        if index >= len(self._buckets):
            series = self.program.series_of(self._buckets)
            self._warm_series(series[index - len(self._buckets)])
            return
        bucket = self._buckets[index]
        vector = self.arrays.full(self.layouts[bucket])
        self.warm_write()
        self.warm_copy()
        made = self.forward(bucket, vector)
        self.write_masks((), self.layouts[bucket].logit_rows)
        jax.block_until_ready(self.chosen(made))

    @property
    def part_warmups(self) -> int:
        """Number of indices for `warm_part`."""
        return sum(part.warmups for part in self.parts)

    def warm_part(self, index: int) -> None:
        """Run programs of parts once; the parts follow each other."""
        for part in self.parts:
            if index < part.warmups:
                part.warm(index)
                return
            index -= part.warmups
        raise IndexError(f"there are {self.part_warmups} to warm")

    def _warm_series(self, bucket: Bucket) -> None:
        vector = self.arrays.full(self.layouts[bucket])
        vectors = np.stack([vector] * self.limits.steps_per_launch)
        jax.block_until_ready(self._series(bucket, vectors))

    def warm_write(self) -> None:
        """Write the scratch slot, if this runner chooses tokens."""
        if self.state is not None:
            self.write([self._packed(SlotSampling(self.limits.slots, _NO_EDITS))])

    def warm_copy(self) -> None:
        """Copy the scratch page onto itself."""
        self.copy([(0,) * self.program.copied])

    def launch(self, *steps: Step) -> Launched:
        first = steps[0]
        for change in first.samplings:
            self._tops[change.slot] = change.sampling.logprobs
        # Let go of together, at the end: behind a proxy each time is a request.
        replaced = self.pages, self.state
        bucket = self.bucket(first)
        packed = [self.arrays.pack(step, self.layouts[bucket]) for step in steps]
        vectors, ranges = [vector for vector, _ in packed], [places for _, places in packed]
        self.write(self.packed_writes(first))
        self.copy(first.copies)
        launched = Launched(steps, ranges, [self._tops[row.slot] for row in first.rows])
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
            made, self.pages = call(self._leaves, self.pages, vector, given, *more)
        for part in self.parts:
            part.follow(bucket, vector, self.last_tokens)
        return made

    def chosen(self, computed: Computed) -> Outputs:
        """Choose a token for each row of logits; the next forward pass takes it from the device."""
        with self.held:
            call = self.compiled[choice_name(computed.logits.shape[0])]
            outputs, self.state = call(computed, self.state)
        return outputs

    def replace(
        self,
        indices: Sequence[int],
        made: Callable[[tuple[jax.Array, ...]], Sequence[jax.Array]],
    ) -> None:
        """Replace some of the weights, between two calls; made: takes what is at the indices."""
        with self.held:
            leaves = list(self._leaves)
            old = tuple(leaves[index] for index in indices)
            for index, array in zip(indices, made(old), strict=True):
                leaves[index] = array
            self._leaves = tuple(leaves)

    def close(self) -> None:
        """Free device memory; a call of another thread gets an error."""
        with self.held:
            self.closed = True
            self._sharers.discard(id(self))
            shared = bool(self._sharers)
            held = (() if shared else self._leaves, self.pages, self.state, self._no_tokens)
            arrays: list[jax.Array] = jax.tree.leaves(held)
            self._leaves, self.pages = (), ()
            free(arrays)
            drop(self.compiled)
        for part in self.parts:
            part.close(shared=shared)
