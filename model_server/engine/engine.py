"""The engine: one thread that keeps one step in flight while it launches the next.

The public entry point of this package. Each iteration takes in new requests, launches step n + 1,
reads and commits step n, and delivers the results of step n. Where grammars restrict the tokens of
step n + 1, it makes their masks then, while the device runs the forward pass of step n + 1. Images
that prompts wait for are encoded behind step n + 1, a few at a time, so that answers go on:

    engine = Engine(runner, deliver)
    sequence = engine.submit(EngineRequest(prompt=(1, 2, 3), max_tokens=2, stop_ids=frozenset(),
                                           sampling=Sampling(0.0, 0, 1.0, seed=0)))
    # deliver([SequenceUpdate(sequence, RowResult(token=17))]), then
    # deliver([SequenceUpdate(sequence, RowResult(token=4), finish="length")])

Every submitted sequence gets exactly one update with a `finish` or an `error`, whatever happens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq

from model_server.engine.drafting.drafting import drafting_of
from model_server.engine.failure import DevicesLost, stopped
from model_server.engine.ids import Ids
from model_server.engine.outbox import Deliver, Outbox
from model_server.engine.parts.pauses import Pauses
from model_server.engine.places import Places
from model_server.engine.registry import new_sequence
from model_server.engine.request import Begun, EngineRequest, Finish, SequenceUpdate
from model_server.engine.running.ops import Choose, Pending, Runner
from model_server.engine.scheduler import Scheduler
from model_server.engine.sequence import Sequence
from model_server.engine.stats import EngineStats
from model_server.engine.step_times import StepClock, StepTimes
from model_server.engine.types import RowResult, Step, StepResult
from model_server.engine.watchdog import OnHang, Watchdog, limit_s
from sax.errors import ShuttingDown

__all__ = ["Engine", "EngineStats", "Finish", "EngineRequest", "SequenceUpdate"]

log = logging.getLogger(__name__)

STEP_LIMIT_S = 30.0

Announce = Callable[[int], None]
InFlight = tuple[list[Step], Pending[Seq[StepResult]]]  # the steps of one launch
# Takes over the sequences of an engine whose devices are lost; returns the ids that it could.
TakeOver = Callable[[DevicesLost, list[Begun]], Collection[int]]


class Engine:
    """Serves sequences on one runner, which it owns. All methods are thread-safe.

    `deliver` runs on the engine's thread, at most once per step, and must not block. It may see a
    sequence's first update before `submit` has returned: register under a lock, or on an event loop
    that `deliver` posts to.
    """

    def __init__(
        self,
        runner: Runner,
        deliver: Deliver,
        times: StepTimes | None = None,
        step_limit_s: float = STEP_LIMIT_S,
        on_hang: OnHang | None = None,
        stream_interval_s: float = 0.0,
        ids: Ids | None = None,
        take_over: TakeOver | None = None,
    ) -> None:
        """times: of the runner's steps, for the pace of prompts. on_hang: called on a thread of its
        own if a step does not finish within the limit (longer on a slow host); None: never.
        stream_interval_s: between deliveries in the middle of answers; 0: every step.
        ids: shared with other engines; None: its own. take_over: called on the engine's thread,
        once all is delivered that was computed, if the runner raises DevicesLost."""
        self._runner = runner
        self._limits = runner.limits
        self._drafting = drafting_of(runner, times)
        self.pauses = Pauses(self._post, lambda: self._outbox.flush())
        parts = [self.pauses, self._drafting] if self._drafting else [self.pauses]
        self._scheduler = Scheduler(self._limits, times, parts)
        self._watchdog: Watchdog | None = None
        if on_hang is not None:
            self._watchdog = Watchdog(limit_s(step_limit_s, times), times, on_hang)
        self._changed = threading.Condition()  # guards all below
        self._inbox: deque[Sequence | int | Callable[[], None]] = deque()  # to add, cancel, do
        self._places = Places(self._limits, self._scheduler)
        self._ids = ids or Ids()
        self._take_over = take_over
        self._draining = False
        self._closing = False
        self._losing: DevicesLost | None = None
        self._resting = False  # nothing live and nothing in flight
        self._ended = False  # the thread accepts no more requests
        self._released = False
        self._failure: BaseException | None = None
        self._outbox = Outbox(deliver, stream_interval_s)  # from here on: the engine's thread only
        self._busy_s = 0.0
        self._clock = StepClock(self._scheduler.took)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> BaseException | None:
        """Why it computes nothing more; its thread may not have noticed yet."""
        return self._failure or self._losing

    def reserve(self, engine_request: EngineRequest) -> None:
        """Hold a place for a request until `submit(reserved=True)` or `release`.

        Raises as `submit` does. `drain` waits for it.
        """
        with self._changed:
            self._check_open()
            new_sequence(0, engine_request, self._limits)
            self._places.check(engine_request, self._busy_s)
            self._places.reserved[engine_request.account] += 1

    def release(self, account: str = "") -> None:
        with self._changed:
            self._places.reserved -= Counter([account])
            self._changed.notify_all()

    def submit(
        self,
        engine_request: EngineRequest,
        *,
        reserved: bool = False,
        announce: Announce | None = None,
    ) -> int:
        """Queue a request and return its sequence id; `reserved` uses up a place, even on an error.

        announce: called with the id before any step can have the sequence.
        Raises InvalidRequest, PromptTooLong, QueueFull, ShuttingDown, or Internal once failed.
        """
        with self._changed:
            if reserved:
                self._places.reserved -= Counter([engine_request.account])
            self._check_open(draining=self._draining and not reserved)
            # A beam search runs its hypotheses under ids of their own.
            beams = engine_request.beams
            id = self._ids.take(1 if beams is None else beams.size)
            sequence = new_sequence(id, engine_request, self._limits)
            self._places.check(engine_request, self._busy_s)
            if announce is not None:
                announce(id)
            self._put(sequence)
        return id

    def resume(self, id: int, engine_request: EngineRequest) -> None:
        """Queue what is left of another engine's sequence, however full the queue is, also while
        this one drains.

        Raises ShuttingDown once closed, or Internal once failed.
        """
        with self._changed:
            self._check_open(draining=False)
            self._put(new_sequence(id, engine_request, self._limits))

    def cancel(self, sequence: int) -> None:
        """Free the slot and pages of a sequence within one step, if it is still live."""
        with self._changed:
            if not self._ended:
                self._inbox.append(sequence)
                self._changed.notify_all()

    def lose(self, failure: DevicesLost) -> None:
        """Fail as if the runner had raised this, also while there is nothing to compute."""
        with self._changed:
            self._losing = failure
            self._changed.notify_all()

    def has_slot(self, sequence: int) -> bool:
        """Return False while a sequence waits, and once it has ended; accurate within one step."""
        return self._scheduler.has_slot(sequence)

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for live ones; return False on timeout."""
        with self._changed:
            self._draining = True
            return self._changed.wait_for(self._is_still, timeout_s)

    def close(self) -> None:
        """Cancel everything, end the thread, then close the runner. Idempotent."""
        assert threading.current_thread() is not self._thread, "deliver must not close the engine"
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            released, self._released = self._released, True
        if not released:
            self._runner.close()

    def stats(self) -> EngineStats:
        """Return a snapshot, accurate to within one step."""
        load = self._scheduler.load()._asdict()
        for name in ("live", "accounts", "window_pages_used"):
            del load[name]
        load["waiting"] += self._places.arriving.total()
        return EngineStats(
            **load,
            slots=self._limits.slots,
            pages=self._limits.pages,
            draft_tokens=self._drafting.proposed if self._drafting else 0,
            draft_tokens_accepted=self._drafting.accepted if self._drafting else 0,
            busy_s=self._busy_s,
        )

    # Callers' threads, under the lock

    def _put(self, sequence: Sequence) -> None:
        self._inbox.append(sequence)
        self._places.arriving[sequence.request.account] += 1
        self._changed.notify_all()

    def _post(self, call: Callable[[], None]) -> None:
        with self._changed:
            self._check_open(draining=False)
            self._inbox.append(call)
            self._changed.notify_all()

    def _check_open(self, draining: bool | None = None) -> None:
        if self._failure:
            raise stopped(self._failure)
        if self._closing or (self._draining if draining is None else draining):
            raise ShuttingDown("this replica is shutting down; try another")

    def _is_still(self) -> bool:
        return self._ended or (
            self._resting and not self._inbox and not self._places.reserved.total()
        )

    # The engine's thread

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as failure:  # no caller may wait for a dead thread
            log.exception("the engine stopped")
            self._fail(failure)
        self._expect(None)
        if self._watchdog is not None:
            self._watchdog.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self.pauses.fail(stopped(self._failure or ShuttingDown("it was unloaded meanwhile")))

    def _loop(self) -> None:
        in_flight: InFlight | None = None
        while in_flight or not self._closing or self._scheduler.live or self._inbox:
            self._take_inbox(may_rest=not in_flight)
            began_s = time.monotonic()
            if not in_flight:
                self._clock.began_s = began_s
            if self._drafting is not None and self._drafting.asks and not in_flight:
                self._expect(Step(self._scheduler.live.steps + 1, ()))
            steps = self._schedule(began_s)
            step = steps[0] if steps else None
            self._expect(in_flight[0][0] if in_flight else step)
            launched = (steps, self._runner.launch(*steps)) if steps else None
            done = self._do()
            if in_flight:
                self._read(in_flight)
            self._expect(None)
            if step and step.guided:
                self._choose(step)
            self._busy_s += time.monotonic() - began_s
            # A step with prompt blocks may take ten times as long as decodes.
            self._outbox.flush(more=step is not None and step.rows[-1].is_decode)
            busy = launched or in_flight or done
            assert busy or self.pauses.reached or not self._scheduler.live, "nothing to do"
            in_flight = launched

    def _schedule(self, now_s: float) -> list[Step]:
        if self._limits.steps_per_launch > 1:
            return self._scheduler.schedule_series(now_s)
        step = self._scheduler.schedule(now_s)
        return [step] if step else []

    def _do(self) -> bool:
        """Have the runner do what parts want behind the last step; return False if nothing."""
        if (op := self._scheduler.op()) is None:
            return False
        self._runner.do(op)
        self._clock.behind_ops.add(self._scheduler.live.steps + 1)
        return True

    def _read(self, launched: InFlight) -> None:
        """Wait for the steps of one launch, and commit them."""
        steps, pending = launched
        results = pending.result()
        spans = self._clock.read(steps)
        for step, result, span in zip(steps, results, spans, strict=True):
            self._outbox.add(self._scheduler.commit(step, result, span))

    def _choose(self, step: Step) -> None:
        """Make the masks of a launched step; the device runs its forward pass meanwhile."""
        masks, failed = self._scheduler.masks(step)
        self._runner.do(Choose(tuple(masks)))
        self._outbox.add(failed)

    def _expect(self, step: Step | None) -> None:
        if self._watchdog is not None:
            behind_images = step is not None and step.number in self._clock.behind_ops
            self._watchdog.expect(step, behind_images=behind_images)

    def _take_inbox(self, *, may_rest: bool) -> None:
        """Add and cancel what arrived; sleep until something arrives if there is nothing else to
        do.
        """
        with self._changed:
            if may_rest and self.pauses.rests:
                self._resting = not self._scheduler.live
                self._clock.read_s = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._inbox or self._closing or self._losing)
                self._resting = False
            if self._losing and not self._closing:
                raise self._losing
            cancelled: list[int] = []
            while self._inbox:
                arrival = self._inbox.popleft()
                if isinstance(arrival, Sequence):
                    self._scheduler.add(arrival)
                    self._places.arriving -= Counter([arrival.request.account])
                elif not isinstance(arrival, int):
                    arrival()
                elif self._scheduler.cancel(arrival):
                    cancelled.append(arrival)
            if self._closing:
                cancelled += self._scheduler.cancel_all()
        self._outbox.add(SequenceUpdate(id, RowResult(), "cancelled") for id in cancelled)

    def _fail(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = failure
            arrived = [each for each in self._inbox if isinstance(each, Sequence)]
            begun = [*self._scheduler.live.begun(), *(each.begun for each in arrived)]
            self._scheduler.cancel_all()
            cancelled = {each for each in self._inbox if isinstance(each, int)}
            self._inbox.clear()
            self._places.arriving.clear()
        try:
            taken = {each.id for each in begun} & cancelled
            self._outbox.add(SequenceUpdate(id, RowResult(), "cancelled") for id in sorted(taken))
            if self._take_over is not None and isinstance(failure, DevicesLost):
                self._outbox.flush()
                rest = [each for each in begun if each.id not in taken]
                taken.update(self._take_over(failure, rest))
            lost = [each.id for each in begun if each.id not in taken]
            error = stopped(failure)
            self._outbox.add(SequenceUpdate(id, RowResult(), error=error) for id in lost)
            self._outbox.flush()
        except Exception:
            log.exception("could not deliver the engine's failure")
