"""Runs steps on this process's devices: pad to a bucket, one compiled call, pages donated.

Every bucket is compiled before the first step; a compiled call cannot compile again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.engine.buckets import Bucket, choose
from model_server.engine.compiling import COMPILED_HERE, Programs, compiled_in_turn
from model_server.engine.page_copies import PageCopies, PageTraffic
from model_server.engine.step_arrays import ColumnLayout, StepArrays
from model_server.engine.step_program import Outputs, StepProgram
from model_server.engine.types import EngineLimits, PendingStep, RowResult, Step, StepResult
from model_server.kernels.local_devices import full
from model_server.kernels.paged import Kernel
from model_server.kernels.pages import LayerPages
from model_server.kernels.sequence_sharding import SequenceSharding
from model_server.models.weights.quantized import as_bytes
from model_server.models.weights.weight import Blueprint
from sax.types import Progress


def free(arrays: list[jax.Array]) -> None:
    """Empty the list and free the memory, even of arrays that others still reference."""
    held = [weakref.ref(array) for array in arrays]
    arrays.clear()
    for each in held:
        if (array := each()) is not None and not array.is_deleted():
            array.delete()


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


class _PagesOnly:
    """A step without rows: it only moves pages, so there is no result to read."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def result(self) -> StepResult:
        return StepResult(self._step.number, ())


class ModelRunner:
    """The real Runner: one model, its pages and its compiled buckets on the local devices."""

    def __init__(
        self,
        blueprint: Blueprint,
        leaves: Sequence[jax.Array],
        pages: Sequence[LayerPages],
        limits: EngineLimits,
        buckets: Sequence[Bucket],
        kernel: Kernel,
        split: SequenceSharding | None = None,
        traffic: PageTraffic | None = None,  # for disaggregated prefill
    ) -> None:
        self._limits = limits
        self._buckets = tuple(buckets)
        # Keeps shapes only: arrays are donated while other buckets still compile.
        self._program = StepProgram(blueprint, leaves, pages, limits, kernel, split)
        # A flat tuple of arrays is passed to a compiled call much faster than a module.
        self._leaves = tuple(map(as_bytes, leaves))
        self._pages = tuple(pages)
        everywhere = self._program.everywhere
        self._last_tokens = full((limits.slots + 1,), 0, jnp.int32, everywhere)
        self._arrays = StepArrays(limits)
        self._tops = [0] * limits.slots
        self._layouts = {bucket: ColumnLayout(bucket, limits) for bucket in self._buckets}
        self._compiled: dict[Bucket, Any] = {}
        self.traffic = traffic
        most = limits.pages_per_sequence
        self._copies = PageCopies(self._program.pages, self._program.last_tokens, everywhere, most)
        self.closed = False

    @property
    def limits(self) -> EngineLimits:
        return self._limits

    @property
    def weight_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self._leaves)

    def compile(
        self, report: Callable[[Progress], None], programs: Programs = COMPILED_HERE
    ) -> None:
        """Compile every bucket. Nothing runs yet: `warm` does that."""

        def program_of(bucket: Bucket) -> Any:
            return self._compile_one(bucket, programs)

        total = len(self._buckets)
        report(Progress("compiling bucket", 0, total))
        with closing(compiled_in_turn(self._buckets, program_of)) as made:
            for done, (bucket, program) in enumerate(made, 1):
                self._compiled[bucket] = program
                report(Progress("compiling bucket", done, total))
        if self.traffic is not None:
            self._copies.compile(self.traffic, programs)

    def _compile_one(self, bucket: Bucket, programs: Programs) -> Any:
        return programs.compiled(str(bucket), lambda: self._program.lower(bucket))

    @property
    def buckets(self) -> int:
        """Number of indices for `warm`; the page copies count as one more."""
        return len(self._buckets) + (self.traffic is not None)

    def warm(self, bucket: int) -> None:
        """Run a bucket once: the first run links the program, which takes as long as many steps."""
        if bucket == len(self._buckets):
            assert self.traffic is not None, "there are no more buckets"
            return self._copy_scratch(self.traffic)
        shape = self._buckets[bucket]
        vector, _ = self._arrays.pack(Step(0, ()), self._layouts[shape])
        jax.block_until_ready(self.call(shape, vector))
        return None

    def _copy_scratch(self, traffic: PageTraffic) -> None:
        """Run each page copy once, from page 0 to page 0."""
        most = (0,) * ((1 << self._limits.pages_per_sequence.bit_length()) - 1)
        blocks = self._copies.read(self._pages, most) if traffic.gives else []
        if traffic.takes:
            blocks = blocks or self._copies.empty(len(most))
            self._pages = self._copies.write(self._pages, blocks, most)
            self._last_tokens = self._copies.put_token(self._last_tokens, self._limits.slots, 0)
        jax.block_until_ready((blocks, self._pages, self._last_tokens))

    def launch(self, step: Step) -> PendingStep:
        for change in step.samplings:
            self._tops[change.slot] = change.sampling.logprobs
        self._take_in(step)
        if not step.rows:
            self._arrays.apply(step)
            return _PagesOnly(step)
        bucket = self.bucket(step)
        vector, ranges = self._arrays.pack(step, self._layouts[bucket])
        outputs = self.call(bucket, vector)
        self._hand_out(step)
        tops = [self._tops[row.slot] for row in step.rows]
        return Launched(step, outputs, ranges, tops)

    def _take_in(self, step: Step) -> None:
        """Drop and import pages, before the rows run."""
        if self.traffic is None:
            assert not step.imports, "this server fetches no pages"
            assert not step.exports, "this server offers no pages"
            return
        for key in step.drops:
            self.traffic.drop(key)
        for new in step.imports:
            blocks = self.traffic.take(new.key)
            self._pages = self._copies.write(self._pages, blocks, new.pages)
            self._last_tokens = self._copies.put_token(self._last_tokens, new.slot, new.token)

    def _hand_out(self, step: Step) -> None:
        """Export pages after the rows ran, before the next step writes to them."""
        for export in step.exports:
            assert self.traffic is not None
            self.traffic.offer(export.key, self._copies.read(self._pages, export.pages))

    def bucket(self, step: Step) -> Bucket:
        """Return the compiled shape that this step is padded to."""
        decodes = sum(row.is_decode for row in step.rows)
        block = self._limits.prefill_block
        blocks = sum(-(-row.count // block) for row in step.rows if not row.is_decode)
        return choose(self._buckets, decodes, blocks, block)

    def call(self, bucket: Bucket, vector: np.ndarray) -> Outputs:
        """Run one device call; pages and last tokens are donated and replaced."""
        outputs, self._pages, self._last_tokens = self._compiled[bucket](
            self._leaves, self._pages, self._last_tokens, vector
        )
        return outputs

    @property
    def offer(self) -> str:
        """Address from which other replicas fetch this host's offers; "" if it offers none."""
        return self.traffic.addresses()[0] if self.traffic and self.traffic.gives else ""

    def connect(self, key: str, offers: Sequence[str]) -> None:
        """Does nothing: this host's offers are for other replicas."""

    def close(self) -> None:
        self.closed = True
        arrays: list[jax.Array] = jax.tree.leaves((self._leaves, self._pages))
        self._leaves, self._pages = (), ()
        free(arrays)
        self._last_tokens.delete()
        if self.traffic is not None:
            self.traffic.close()
        self._compiled.clear()
