"""The run of a benchmark: sends the requests, and measures when what came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sax.cli.bench.outcome import Outcome
from sax.cli.bench.target import BenchTarget
from sax.cli.bench.workload import PlannedRequest
from sax.errors import SaxError

Progress = Callable[["BenchRun"], None]


@dataclass
class BenchRun:
    """The outcomes so far."""

    target: BenchTarget
    total: int
    clock: Callable[[], float] = time.perf_counter
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    running: int = 0
    stopped: bool = False  # before its end, by Ctrl-C
    _began_s: float = 0.0

    async def send(
        self, requests: Sequence[PlannedRequest], concurrency: int | None, report: Progress
    ) -> None:
        """Send the requests at their times, or as soon as one of `concurrency` streams is free.

        Returns early when its task is cancelled: what was answered until then is in `outcomes`.
        """
        self._began_s = self.clock()
        free = asyncio.Semaphore(concurrency or len(requests) or 1)
        tasks: list[asyncio.Task[None]] = []
        unfinished = 0
        try:
            for request in requests:
                await self._wait_for(request)
                await free.acquire()
                tasks.append(asyncio.create_task(self._measure(request, free, report)))
            await asyncio.wait(tasks)  # unlike gather, it leaves them alone when it is cancelled
        except asyncio.CancelledError:
            self.stopped, unfinished = True, self.running
            if (own := asyncio.current_task()) is not None:
                own.uncancel()
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        self.running = unfinished

    async def _wait_for(self, request: PlannedRequest) -> None:
        if request.at_s is not None:
            await asyncio.sleep(max(0.0, self._began_s + request.at_s - self.clock()))

    async def _measure(
        self, request: PlannedRequest, free: asyncio.Semaphore, report: Progress
    ) -> None:
        self.running += 1
        try:
            self.outcomes.append(await self._outcome(request))
        finally:
            self.running -= 1
            free.release()
        report(self)

    async def _outcome(self, request: PlannedRequest) -> Outcome:
        # From when it was due: that a stream was not free, or this process late, counts as waiting.
        sent_s = self._now_s() if request.at_s is None else request.at_s
        arrived: list[float] = []
        tokens, prompt_tokens, error = None, 0, ""
        try:
            async for part in self.target.answer(request):
                if part.shown:
                    arrived.append(self._now_s())
                tokens = tokens if part.tokens is None else part.tokens
                prompt_tokens = part.prompt_tokens or prompt_tokens
        except SaxError as failure:
            error = failure.text
        return Outcome(
            sent_s=sent_s,
            ended_s=self._now_s(),
            pieces_s=tuple(arrived),
            prompt_tokens=prompt_tokens,
            tokens=len(arrived) if tokens is None else tokens,
            wanted=request.tokens,
            error=error,
        )

    def _now_s(self) -> float:
        return self.clock() - self._began_s
