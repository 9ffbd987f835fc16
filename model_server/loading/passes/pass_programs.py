"""The programs of one kind of pass over whole inputs: a bucket per length and number of inputs.

They are compiled before there are weights: what they need is part of the memory plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax

from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.loading.batch_plan import compiled_all
from model_server.loading.loaded_model import Report
from model_server.models.weights.quantized import as_bytes
from sax.types import Progress

Input = TypeVar("Input")
Output = TypeVar("Output")

_SHORTEST = 32
_TOKENS = 4096  # tokens per call at most, unless a single input has more


def lengths_up_to(context: int, shortest: int = _SHORTEST) -> tuple[int, ...]:
    """Return the lengths to compile: powers of two times the shortest, then the whole context."""
    lengths, length = list[int](), shortest
    while length < context:
        lengths.append(length)
        length *= 2
    return (*lengths, context)


def rows_up_to(batch: int, length: int) -> tuple[int, ...]:
    """Return the batch sizes to compile for one length: 1, 4, 16, ... as far as they fit."""
    most = max(1, min(batch, _TOKENS // length))
    rows, size = [], 1
    while size < most:
        rows.append(size)
        size *= 4
    return (*rows, most)


def split(count: int, sizes: Sequence[int]) -> list[int]:
    """Return compiled sizes that together hold `count` inputs, none more than half empty."""
    chosen: list[int] = []
    while count > 0:
        fitting = [size for size in sizes if size < 2 * count]
        chosen.append(max(fitting))
        count -= chosen[-1]
    return chosen


class PassBucket(NamedTuple):
    rows: int
    length: int


class PassPrograms(Generic[Input, Output]):
    """All buckets up to a context and a batch; a subclass says what they compute."""

    def __init__(
        self,
        kind: str,
        context: int,
        batch: int,
        lower: Callable[[PassBucket], jax.stages.Lowered],
        shortest: int = _SHORTEST,
    ) -> None:
        """kind: begins the programs' names. lower: traces the program of a bucket. shortest: of the
        lengths that are compiled.
        """
        lengths = lengths_up_to(context, shortest)
        self.rows = {length: rows_up_to(batch, length) for length in lengths}
        self.buckets = tuple(
            PassBucket(rows, length) for length, sizes in self.rows.items() for rows in sizes
        )
        self._kind = kind
        self._lower = lower
        self.compiled: dict[PassBucket, Any] = {}

    @property
    def lowers(self) -> Mapping[str, Callable[[], jax.stages.Lowered]]:
        """Functions that trace each program, by name."""
        return {self._name(bucket): partial(self._lower, bucket) for bucket in self.buckets}

    def compile(
        self,
        report: Report,
        programs: Programs = COMPILED_HERE,
        buckets: Sequence[PassBucket] | None = None,
    ) -> None:
        """Compile these buckets; None: all."""
        wanted, lowers = self.buckets if buckets is None else buckets, self.lowers

        def compile_one(bucket: PassBucket) -> Any:
            name = self._name(bucket)
            return programs.compiled(name, lowers[name])

        self.compiled |= compiled_all(wanted, compile_one, report)

    @property
    def largest(self) -> PassBucket:
        """The bucket of the most tokens."""
        return max(self.buckets, key=lambda bucket: bucket.rows * bucket.length)

    @property
    def batch(self) -> int:
        """Inputs of the largest bucket."""
        return max(max(sizes) for sizes in self.rows.values())

    @property
    def workspace(self) -> int:
        """Bytes on a device of the code of all buckets, as far as it is reported, and of the
        largest temporaries and results.
        """
        stats = [each for program in self.compiled.values() if (each := program.memory_analysis())]
        if not stats:
            return 0
        code = sum(each.generated_code_size_in_bytes for each in stats)
        used = max(each.temp_size_in_bytes + each.output_size_in_bytes for each in stats)
        return used + code * len(self.buckets) // len(stats)

    @staticmethod
    def ids(given: Input) -> Sequence[int]:
        """Return the tokens of an input."""
        raise NotImplementedError

    def run(
        self, leaves: Sequence[jax.Array], inputs: Sequence[Input], bucket: PassBucket
    ) -> list[Output]:
        """Return one output per input; the rest of the bucket's rows are empty."""
        raise NotImplementedError

    def _name(self, bucket: PassBucket) -> str:
        return f"{self._kind} of {bucket.rows} x {bucket.length} tokens"


class PassBatches(Generic[Input, Output]):
    """Programs and weights: pad to a bucket, then one compiled call, which cannot compile again.

    Not thread-safe: one thread calls it.
    """

    def __init__(self, programs: PassPrograms[Input, Output], leaves: Sequence[jax.Array]) -> None:
        self._programs = programs
        self._leaves = tuple(map(as_bytes, leaves))
        self.closed = False

    def group(self, given: Input) -> int:
        """Return the compiled length of an input."""
        count = len(self._programs.ids(given))
        return next(length for length in self._programs.rows if length >= count)

    def run(self, inputs: Sequence[Input]) -> list[Output]:
        length = max(map(self.group, inputs))
        found: list[Output] = []
        for rows in split(len(inputs), self._programs.rows[length]):
            part = inputs[len(found) : len(found) + rows]
            found += self._run(part, PassBucket(rows, length))
        return found

    def _run(self, part: Sequence[Input], bucket: PassBucket) -> list[Output]:
        return self._programs.run(self._leaves, part, bucket)

    def warm(self, report: Report) -> None:
        """Run every bucket once, so that no request pays for a first run."""
        buckets = self._programs.buckets
        for done, bucket in enumerate(buckets):
            report(Progress("running bucket", done, len(buckets)))
            self._run((), bucket)

    def close(self) -> None:
        """Release weights and programs. Idempotent."""
        self._leaves = ()
        self._programs.compiled.clear()
        self.closed = True
