"""BatchWorker: finds batches that nobody runs, and runs them beside the gateway's requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from http_gateway.openai.batches.batch_run import BatchPace, BatchRun
from http_gateway.openai.batches.kept_batches import KeptBatches, Place
from http_gateway.openai.batches.line_runner import LineRunner, LineSlots
from http_gateway.openai.batches.records import BatchBeat
from http_gateway.openai.files.kept_files import KeptFiles
from http_gateway.sse import stop
from sax.errors import Unavailable

log = logging.getLogger(__name__)

# Batches at once; the others wait, or another gateway takes them. Those of a key with low limits
# may take days, and hold up no others.
_MOST_RUNS = 64
_MOST_OF_OWNER = 4
_SWEEP_S = 3600.0

Sweep = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BatchLease:
    """One look at a batch's newest claim, and since when it has looked like this.

    Decides from a gateway's beats whether another may run its batch, by the watcher's own clock
    alone: the clocks of two machines need not agree. A wrong decision costs some lines answered in
    vain, and never one told twice: the batch's log is the fence.
    """

    claim: int = 0  # 0: nobody ever claimed it
    beat: BatchBeat | None = None
    since_s: float = 0.0

    def look(self, claim: int, beat: BatchBeat | None, now_s: float) -> BatchLease:
        """Return the lease after another look; any change is a sign of life."""
        if (claim, beat) == (self.claim, self.beat):
            return self
        return BatchLease(claim, beat, now_s)

    def vacant(self, now_s: float, patience_s: float) -> bool:
        if self.claim == 0 or (self.beat is not None and self.beat.resigned):
            return True
        return now_s - self.since_s >= patience_s


class BatchWorker:
    def __init__(
        self,
        kept: KeptBatches,
        files: KeptFiles,
        runner: LineRunner,
        sweeps: Sequence[Sweep] = (),
        *,
        slots: LineSlots,
        pace: BatchPace | None = None,
    ) -> None:
        """slots: lines at once, of all batches. sweeps: called once an hour to delete what has
        expired."""
        self._kept = kept
        self._files = files
        self._runner = runner
        self._sweeps = sweeps
        self._slots = slots
        self._pace = pace or BatchPace()
        self._name = uuid.uuid4().hex
        self._runs: dict[Place, asyncio.Task[None]] = {}
        self._leases: dict[Place, BatchLease] = {}
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """Look for batches now."""
        self._poked.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run batches until the end of the block; then let other gateways have them."""
        wanted = (self._look_on() if self._kept.on else None, self._sweep_on())
        tasks = [asyncio.create_task(each) for each in wanted if each is not None]
        try:
            yield
        finally:
            await stop(*tasks)
            await stop(*self._runs.values())

    async def _look_on(self) -> None:
        while True:
            self._poked.clear()
            try:
                await self._look()
            except Unavailable as error:
                log.warning("batches wait for the store: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.poll_s):
                    await self._poked.wait()

    async def _look(self) -> None:
        self._runs = {place: task for place, task in self._runs.items() if not task.done()}
        places = await self._kept.open()
        self._leases = {place: self._leases.get(place, BatchLease()) for place in places}
        for place in places:
            of_owner = sum(owner == place[0] for owner, _ in self._runs)
            if place in self._runs or of_owner >= _MOST_OF_OWNER:
                continue
            if len(self._runs) >= _MOST_RUNS:
                return
            await self._take(place)

    async def _take(self, place: Place) -> None:
        """Claim a batch and run it, if nobody does."""
        claim, beat = await self._kept.newest_claim(place)
        now_s = time.monotonic()
        lease = self._leases[place] = self._leases[place].look(claim, beat, now_s)
        if not lease.vacant(now_s, self._pace.patience_s):
            return
        if await self._kept.claim(place, claim + 1, self._name):
            self._runs[place] = asyncio.create_task(self._run(place, claim + 1))

    async def _run(self, place: Place, claim: int) -> None:
        log.info("running batch %s", place[1])
        run = BatchRun(
            self._kept,
            self._files,
            self._runner,
            self._slots,
            self._pace,
            place=place,
            claim=claim,
            writer=self._name,
        )
        try:
            await run.run()
        except Exception:
            log.exception("batch %s failed; it is tried again", place[1])

    async def _sweep_on(self) -> None:
        while True:
            for sweep in self._sweeps:
                try:
                    await sweep()
                except Unavailable as error:
                    log.warning("what has expired is not deleted: %s", error)
            await asyncio.sleep(_SWEEP_S)
