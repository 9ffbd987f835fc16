"""Pauses an engine between two steps, with nothing in flight, and does jobs there.

What a pause makes of the answers that have begun is the caller's choice (`Pausing`). Requests that
never had a slot wait until the pause is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from model_server.engine.part import EnginePart
from sax.weights import Pausing

Made = TypeVar("Made")


class _Job(NamedTuple):
    do: Callable[[], Any]
    pausing: Pausing
    done: Future[Any]


class Pauses(EnginePart[None]):
    """The pause of one engine, and the jobs that wait for one. The first four calls are
    thread-safe; the engine's thread alone makes the others."""

    def __init__(
        self, post: Callable[[Callable[[], None]], None], flush: Callable[[], None]
    ) -> None:
        """post: has the engine's thread call something before it schedules the next step.

        flush: delivers all updates so far; called before a job.
        """
        super().__init__()
        self.reached = False  # nothing is in flight, and no step is scheduled
        self._post = post
        self._flush = flush
        self._jobs: deque[_Job] = deque()
        self._held = False  # until `release`
        self._waited_for: set[Future[Any]] = set()

    def between(self, job: Callable[[], Made], pausing: Pausing) -> Future[Made]:
        """Do a job on the engine's thread between two steps, and go on unless `hold` was called.

        The future has its result or its exception, which ends nothing else. It may be cancelled
        until the job begins. Raises as the engine's `submit` once that is closed or has failed.
        """
        done: Future[Made] = Future()
        self._waited_for.add(done)
        done.add_done_callback(self._waited_for.discard)
        try:
            self._post(lambda: self._jobs.append(_Job(job, pausing, done)))
        except BaseException:
            done.cancel()
            raise
        return done

    def hold(self, pausing: Pausing) -> Future[None]:
        """Compute nothing until `release`; the future ends once nothing is computed any more."""
        return self.between(self._hold, pausing)

    def release(self) -> None:
        """End a pause that `hold` began."""
        self._post(self._release)

    def fail(self, error: BaseException) -> None:
        """End what waits for a pause: there will be none."""
        for future in list(self._waited_for):
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    @property
    def rests(self) -> bool:
        """True if there is nothing to do before something arrives."""
        return not self._jobs and (self.reached or not self.live)

    def renew(self) -> None:
        """Let no sequence that begins from now on reuse keys and values of before. In a job."""
        self.live.held.cache.renew()
        for sequence in self.live.all:
            if sequence.slot < 0:
                sequence.paging.chain.clear()

    def plan(self) -> bool:
        """Do the jobs whose pause is reached; return False while no step may be launched."""
        while self._jobs:
            job = self._jobs[0]
            if not job.done.cancelled() and not self._reach(job.pausing):
                return job.pausing is Pausing.WAIT and not self._held
            self._do(self._jobs.popleft())
        self.reached = self.live.accounts.closed = self._held
        return not self._held

    def _reach(self, pausing: Pausing) -> bool:
        """Return True once nothing is in flight, and what is to end first has ended."""
        live = self.live
        live.accounts.closed = True
        ends_first = pausing is Pausing.WAIT and not self._held
        if ends_first and any(each.members[0].started_s for each in live.all):
            return False
        if live.steps != live.committed:
            return False
        for sequence in list(live.running):
            # Hypotheses share pages by digests, which would not tell old ones from new ones.
            if not sequence.is_follower and (sequence.group or pausing is Pausing.RECOMPUTE):
                live.restart(sequence)
        self.reached = True
        return True

    def _do(self, job: _Job) -> None:
        if not job.done.set_running_or_notify_cancel():
            return
        self._flush()
        try:
            job.done.set_result(job.do())
        except Exception as exc:
            job.done.set_exception(exc)

    def _hold(self) -> None:
        self._held = True

    def _release(self) -> None:
        self._held = False
