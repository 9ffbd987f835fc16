"""A Runner whose layers are split over groups of hosts, one pipeline stage per group.

Every host is given the same steps in the same order and computes its stage's part: take hidden
states from the previous host, compute, pass them on. The last stage chooses the tokens and sends
them to the first, whose primary reads them. `launch` only queues; one thread per host computes, so
that all hosts of a stage start their programs in one order.

A sequence's next token passes through all stages in turn: stages add memory, and a little latency
to every step, but no speed for a single batch of decodes.

On one host a decode row takes its token from the device. Here another host's device chose it, so
the first stage waits for the outputs of exactly those steps its decode rows depend on, and prompts
can follow each other through the stages.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from model_server.engine.buckets import Bucket
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.limits import EngineLimits
from model_server.engine.running.compiled_steps import Launched
from model_server.engine.running.ops import DONE, Awaited, Choose, Op, Pending
from model_server.engine.running.runner import ModelRunner
from model_server.engine.sampling import TOP_LOGPROBS
from model_server.engine.step_functions import Computed, Outputs
from model_server.engine.types import Step, StepResult
from model_server.engine.worker import Worker
from model_server.multihost.link import Link, LinkClosed, StageMessage, take
from sax.types import Progress

logger = logging.getLogger(__name__)
Tried = tuple[int, int]  # a logit row, and the draft token that it tried; -1: none
Owed = tuple["Future[Outputs]", list[Tried]]  # a step's outputs, and a slot's rows in them
Feed = Owed | int  # of a decode row: where its token will be, or the token


class StageThread(Worker):
    """The one thread of a host that runs stage programs.

    Pipelines that share it run their steps in launch order, which is the same on every host. With a
    thread per pipeline, hosts of a stage could start programs of two models in different orders and
    deadlock.
    """

    def __init__(self) -> None:
        super().__init__("stage")


class PipelineRunner:
    """One host's part of a pipeline."""

    def __init__(
        self,
        runner: ModelRunner,
        link: Link,
        thread: StageThread,
        on_failure: Callable[[BaseException], None] = lambda failure: None,
    ) -> None:
        """on_failure: called once, in a thread of this pipeline, if this part stops working."""
        assert runner.program.stage is not None, "a pipeline is made of stages"
        self._runner = runner
        self._stage = runner.program.stage
        self._link = link
        self._thread = thread
        self._on_failure = on_failure
        self._failure: BaseException | None = None
        self._failing = threading.Lock()
        self._buckets = tuple(runner.layouts)
        self._tops = [0] * runner.limits.slots
        self._feedback = StageFeedback(link, self._guarded) if self._stage.is_first else None
        self._launched = 0
        # The last stage's step that waits for masks; the stage thread's.
        self._unchosen: tuple[int, Computed, bool] | None = None
        self.closed = False

    @property
    def limits(self) -> EngineLimits:
        return self._runner.limits

    @property
    def weight_bytes(self) -> int:
        return self._runner.weight_bytes

    @property
    def ops(self) -> Mapping[type[Op], Mapping[int, float]]:
        return self._runner.ops

    def compile(
        self, report: Callable[[Progress], None], programs: Programs = COMPILED_HERE
    ) -> None:
        """Compile every bucket without running anything; needs no other host."""
        self._runner.compile(report, programs)

    @property
    def warmups(self) -> int:
        return len(self._buckets) + self._runner.part_warmups

    def warm(self, index: int) -> None:
        """Run an empty step of a bucket, or programs of a part. Raises LinkError.

        All hosts must, in the same order: the first stage's has the most parts, and of those that
        other stages lack these run nothing.
        """
        part = index - len(self._buckets)
        if part < 0:
            self._submit(self._runner.warm_write)
            self._submit(self._runner.warm_copy)
            self._start(Step(0, ()), self._buckets[index]).result()
        elif part < self._runner.part_warmups:
            self._submit(self._runner.warm_part, part).result()

    def launch(self, *steps: Step) -> Pending[Sequence[StepResult]]:
        """Queue a step. Raises the error that stopped the pipeline, if any."""
        (step,) = steps  # limits of stages allow no series
        return self._start(step, self._runner.bucket(step))

    def do(self, op: Op) -> Pending[Any]:
        """Queue an op behind the steps that were launched, if a part of this stage does it.

        Raises the error that stopped the pipeline, if any.
        """
        if self._failure:
            raise self._failure
        if isinstance(op, Choose):
            return _QueuedOp(self._submit(self._choose, op)) if self._stage.is_last else DONE
        if type(op) not in self._runner.ops:
            return DONE  # other stages do it
        if isinstance(op, Awaited):
            return self._runner.do(op)
        return _QueuedOp(self._submit(self._runner.prepared(op)))

    def close(self) -> None:
        """Close; steps in flight end with LinkClosed. Must not be called by `on_failure`.

        Waits for no other host and for no other pipeline of the thread. Idempotent.
        """
        if self.closed:
            return
        self.closed = True
        self._link.close()
        if self._feedback:
            self._feedback.close()
        self._runner.close()

    def _start(self, step: Step, bucket: Bucket) -> Pending[Sequence[StepResult]]:
        if self._failure:
            raise self._failure
        for change in step.samplings:
            self._tops[change.slot] = change.sampling.logprobs
        tops = [self._tops[row.slot] for row in step.rows]
        layout = self._runner.layouts[bucket]
        if step.rows:
            vector, ranges = self._runner.arrays.pack(step, layout)
        else:  # a warm-up
            vector, ranges = self._runner.arrays.full(layout), []
        number, self._launched = self._launched, self._launched + 1
        if self._feedback is None:
            writes = self._runner.packed_writes(step) if self._stage.is_last else []
            self._submit_copies(step)
            rivals = any(tops) or any(row.target_tops for row in step.rows)
            done = self._submit(self._go_on, number, bucket, vector, writes, rivals, step.guided)
            return _Passed(step, done)
        self._submit_copies(step)
        self._submit(self._enter, number, bucket, vector, self._feedback.feeds(step))
        outputs = self._feedback.expect(step, number, ranges, layout.logit_rows)
        return _Returning(step, outputs, ranges, tops, self._reason)

    def _submit_copies(self, step: Step) -> None:
        if step.copies:
            self._submit(self._runner.copy, step.copies)

    def _submit(self, part: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._thread.submit(self._guarded, part, *arguments)

    def _guarded(self, part: Callable[..., Any], *arguments: Any) -> Any:
        try:
            if self.closed:
                raise LinkClosed("the pipeline was closed")
            return part(*arguments)
        except BaseException as failure:
            self._fail(failure)
            raise

    def _fail(self, failure: BaseException) -> None:
        with self._failing:
            if self.closed or self._failure:
                return  # later failures follow from the first
            self._failure = failure
        logger.error("%s stopped", self._stage, exc_info=failure)
        self._link.close()
        self._on_failure(failure)

    def _enter(self, number: int, bucket: Bucket, vector: np.ndarray, feeds: list[Feed]) -> None:
        """Run the first stage; decode rows take the tokens that the last stage chose."""
        _fill(self._runner.layouts[bucket].views(vector)["tokens"], feeds)
        hidden = self._runner.forward(bucket, vector)
        self._link.send(StageMessage(number, (np.asarray(hidden),)))

    def _go_on(
        self,
        number: int,
        bucket: Bucket,
        vector: np.ndarray,
        writes: Sequence[np.ndarray],
        rivals: bool,
        guided: bool,
    ) -> None:
        shape = (self._runner.layouts[bucket].tokens, self._runner.program.embed)
        (hidden,) = take(self._link, number, [(shape, "float32")])
        self._runner.write(writes)
        made = self._runner.forward(bucket, vector, hidden)
        if not self._stage.is_last:
            self._link.send(StageMessage(number, (np.asarray(made),)))
        elif guided:
            self._unchosen = number, made, rivals
        else:
            self._send_chosen(number, made, rivals)

    def _choose(self, op: Choose) -> Pending[None]:
        assert self._unchosen is not None, "the last step was not guided"
        (number, made, rivals), self._unchosen = self._unchosen, None
        self._runner.write_masks(op.masks, made.logits.shape[0])
        self._send_chosen(number, made, rivals)
        return DONE

    def _send_chosen(self, number: int, made: Computed, rivals: bool) -> None:
        outputs = self._runner.chosen(made)
        # Top logprobs are many times larger than the rest, and few requests need them.
        wanted: Sequence[Any] = outputs[:3] if rivals else outputs[:1]
        self._link.send(StageMessage(number, tuple(map(np.asarray, wanted))))

    def _reason(self, failure: LinkClosed) -> BaseException:
        return self._failure or failure


class _Returning:
    """A step launched on the first stage; its tokens come back from the last."""

    def __init__(
        self,
        step: Step,
        outputs: Future[Outputs],
        ranges: list[tuple[int, int]],
        tops: list[int],
        reason: Callable[[LinkClosed], BaseException],
    ) -> None:
        self._step = step
        self._outputs = outputs
        self._ranges = ranges
        self._tops = tops
        self._reason = reason

    def result(self) -> list[StepResult]:
        """Raises LinkError, or the error that stopped this host's part."""
        try:
            outputs = self._outputs.result()
        except LinkClosed as closed:
            raise self._reason(closed) from closed
        return Launched((self._step,), (self._ranges,), self._tops, outputs).result()


class _Passed:
    """A step launched on another stage, which sees no tokens."""

    def __init__(self, step: Step, done: Future[None]) -> None:
        self._step = step
        self._done = done

    def result(self) -> list[StepResult]:
        """Wait for this host's part and return no rows. Raises the error that stopped it."""
        self._done.result()
        return [StepResult(self._step.number, ())]


class _QueuedOp:
    """An op that the stage's thread does."""

    def __init__(self, done: Future[Pending[Any]]) -> None:
        self._done = done

    def result(self) -> Any:
        """Raises the error that stopped this host's part."""
        return self._done.result().result()


class StageFeedback:
    """Token feedback of one pipeline, on a host of its first stage."""

    def __init__(self, link: Link, guarded: Callable[..., Any]) -> None:
        """guarded: calls its arguments and reports any failure."""
        self._link = link
        self._guarded = guarded
        self._inbox = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self._owed: dict[int, Owed] = {}  # slot -> where its last token will be

    def feeds(self, step: Step) -> list[Feed]:
        """Return each decode row's token or its source, in row order."""
        return [
            self._owed[row.slot] if row.given < 0 else row.given
            for row in step.rows
            if row.is_decode
        ]

    def expect(
        self, step: Step, number: int, ranges: list[tuple[int, int]], rows: int
    ) -> Future[Outputs]:
        """Return the future outputs of a launched step whose arrays have `rows` logit rows."""
        outputs = self._inbox.submit(self._guarded, self._take, number, rows)
        owed: dict[int, list[Tried]] = {}
        for row, (_, end) in zip(step.rows, ranges, strict=True):
            if row.yields:
                rows_of = owed.setdefault(row.slot, [])
                rows_of.append((end - 1, row.given if rows_of else -1))
        self._owed |= {slot: (outputs, tried) for slot, tried in owed.items()}
        return outputs

    def close(self) -> None:
        """Call after the link is closed."""
        self._inbox.shutdown()

    def _take(self, number: int, rows: int) -> Outputs:
        numbers = ((3, rows), "int32")
        rivals = [((rows, TOP_LOGPROBS), "int32"), ((rows, TOP_LOGPROBS), "float32")]
        arrays: Any = take(self._link, number, [numbers], [numbers, *rivals])
        return Outputs(*arrays) if len(arrays) == 3 else Outputs(arrays[0], *_NONE)


_NONE: Any = (np.empty((0, 0), np.int32), np.empty((0, 0), np.float32))


def _fill(tokens: np.ndarray, feeds: list[Feed]) -> None:
    """Wait for the tokens of the decode rows and write them. Raises LinkError."""
    for place, feed in enumerate(feeds):
        if isinstance(feed, int):
            tokens[place] = feed
        else:
            outputs, tried = feed
            tokens[place] = _newest(np.asarray(outputs.result().numbers[0]), tried)


def _newest(chosen: np.ndarray, tried: list[Tried]) -> int:
    """Return the token behind the right draft tokens. chosen: i32[R]."""
    token = int(chosen[tried[0][0]])
    for row, draft in tried[1:]:
        if draft != token:
            break
        token = int(chosen[row])
    return token
