"""BatchRun: runs one batch for as long as this gateway has its newest claim."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from http_gateway.openai.batches.input_lines import BatchLine, check_lines, lines_of, read_line
from http_gateway.openai.batches.kept_batches import PREFIX, KeptBatches, LogMoved, Place
from http_gateway.openai.batches.line_runner import LineRunner, LineSlots, LineTurn, line_text
from http_gateway.openai.batches.records import (
    BatchBeat,
    BatchChecked,
    BatchDone,
    BatchFault,
    BatchOrder,
    LineResult,
    LogEntry,
)
from http_gateway.openai.files.kept_files import PREFIX as FILE_PREFIX
from http_gateway.openai.files.kept_files import KeptFile, KeptFiles
from http_gateway.sse import stop
from sax.errors import LimitExceeded, NotFound, Unavailable

_MOST_RESULTS = 64
_MOST_BYTES = 4 << 20


class BatchProgress:
    """Methods raise LogMoved and StoreUnavailable."""

    def __init__(self, kept: KeptBatches, place: Place, writer: str) -> None:
        self._kept = kept
        self._place = place
        self._writer = writer
        self._entries = 0
        self._answered: dict[int, bool] = {}  # line -> True if its answer is good
        self.ending: LogEntry | None = None  # the log's last entry, if it ends the batch
        self._held: list[LineResult] = []
        self._sealed: LogEntry | None = None  # an entry that may have been written or not
        self._lock = asyncio.Lock()

    async def read(self) -> None:
        """Learn what the store holds; once, before anything else."""
        async for entry in self._kept.log(self._place):
            self._note(entry)

    @property
    def answered(self) -> frozenset[int]:
        """Lines whose results are on the store."""
        return frozenset(self._answered)

    @property
    def completed(self) -> int:
        return sum(self._answered.values())

    @property
    def failed(self) -> int:
        return len(self._answered) - self.completed

    async def add(self, result: LineResult) -> None:
        """Take a result; once there are enough of them, write them."""
        self._held.append(result)
        size = sum(len(each.text) for each in self._held)
        if len(self._held) >= _MOST_RESULTS or size >= _MOST_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write what is held. Durable on return."""
        async with self._lock:
            if self._sealed is None and self._held:
                results, self._held = self._held, []
                self._sealed = LogEntry(writer=self._writer, results=results)
            await self._write()

    async def end(self, status: str, at: int) -> None:
        """Write what is held, and that nothing follows."""
        await self.flush()  # perhaps of an entry that could not be written before
        await self.flush()
        async with self._lock:
            if self.ending is not None:
                return
            self._sealed = LogEntry(writer=self._writer, ending=status, at=at)
            await self._write()

    async def _write(self) -> None:
        """Write the sealed entry; as it never changes, trying again cannot write it twice."""
        if self._sealed is None:
            return
        await self._kept.append(self._place, self._entries, self._sealed)
        self._note(self._sealed)
        self._sealed = None

    def _note(self, entry: LogEntry) -> None:
        self._entries += 1
        self._answered |= {result.line: result.good for result in entry.results}
        self.ending = entry if entry.ending else None


log = logging.getLogger(__name__)

_UNANSWERED = {
    "expired": ("batch_expired", "the batch expired before this line was answered"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this line was answered"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPace:
    """Seconds between what a gateway does for its batches."""

    beat_s: float = 3.0
    patience_s: float = 15.0  # silence after which another gateway takes a batch over
    flush_s: float = 2.0  # at most until a result is on the store
    poll_s: float = 5.0  # buckets bill each look
    retry_s: float = 2.0  # after a failure of the store
    last_flush_s: float = 5.0  # while the gateway ends


class BatchRun:
    def __init__(
        self,
        kept: KeptBatches,
        files: KeptFiles,
        runner: LineRunner,
        slots: LineSlots,
        pace: BatchPace,
        *,
        place: Place,
        claim: int,
        writer: str,
    ) -> None:
        """slots: lines at once, of all batches of this gateway. writer: its name in the log."""
        self._kept = kept
        self._files = files
        self._runner = runner
        self._slots = slots
        self._pace = pace
        self._place = place
        self._claim = claim
        self._writer = writer
        self._cancelling = asyncio.Event()
        self._progress: BatchProgress | None = None
        self._beats = 0

    async def run(self) -> None:
        """Return once the batch is done, or another gateway has it. If cancelled, let another
        have it at once."""
        work = asyncio.create_task(self._until_done())
        watch = asyncio.create_task(self._until_deposed())
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            for each in (work, watch):
                if each.done():
                    each.result()
        except asyncio.CancelledError:
            await stop(work, watch)
            await self._resign()
            raise
        finally:
            await stop(work, watch)

    async def _until_done(self) -> None:
        while True:
            try:
                return await self._once()
            except LogMoved as moved:
                log.info("%s was written by another gateway: reading it again", moved)
            except Unavailable as error:
                log.warning("batch %s waits for the store: %s", self._place[1], error)
            await asyncio.sleep(self._pace.retry_s)

    async def _until_deposed(self) -> None:
        while True:
            try:
                newest, _ = await self._kept.newest_claim(self._place)
                if newest != self._claim:
                    log.info("another gateway runs batch %s", self._place[1])
                    return
                await self._beat()
                if await self._kept.is_cancelling(self._place):
                    self._cancelling.set()
            except Unavailable as error:
                log.debug("no beat of batch %s: %s", self._place[1], error)
            await asyncio.sleep(self._pace.beat_s)

    async def _beat(self, *, resigned: bool = False) -> None:
        self._beats += 1
        done = self._progress
        beat = BatchBeat(
            count=self._beats,
            completed=done.completed if done else 0,
            failed=done.failed if done else 0,
            resigned=resigned,
        )
        await self._kept.beat(self._place, self._claim, beat)

    async def _resign(self) -> None:
        """Keep what was answered, and let another gateway go on at once."""
        with contextlib.suppress(Unavailable, LogMoved, TimeoutError):
            async with asyncio.timeout(self._pace.last_flush_s):
                if self._progress is not None and self._progress.ending is None:
                    await self._progress.flush()
                await self._beat(resigned=True)

    async def _once(self) -> None:
        """Go on from what the store holds, to the end."""
        order = await self._kept.order(self._place)
        if order is None or await self._kept.is_done(self._place):
            return await self._kept.close(self._place)
        progress = BatchProgress(self._kept, self._place, self._writer)
        await progress.read()
        self._progress = progress
        if progress.ending is None:
            try:
                file = await self._files.get(order.owner, order.input_file_id)
                if not await self._check(order, file):
                    return
                status = await self._answer(order, file, progress)
            except NotFound as error:
                return await self._fail(BatchFault(code="input_file_missing", message=error.text))
            await progress.end(status, self._now())
        await self._finish(order, progress)

    async def _check(self, order: BatchOrder, file: KeptFile) -> bool:
        """Read the whole input, unless that was done; False: the batch failed."""
        if await self._kept.checked(self._place) is not None:
            return True
        total, faults = await check_lines(self._files.content(order.owner, file), order.endpoint)
        if faults:
            await self._fail(*faults)
            return False
        await self._kept.check_in(self._place, BatchChecked(total, self._now()))
        return True

    async def _fail(self, *faults: BatchFault) -> None:
        done = BatchDone(status="failed", at=self._now(), faults=[*faults])
        await self._kept.finish(self._place, done)
        log.info("batch %s failed: %s", self._place[1], faults[0].message)

    async def _answer(self, order: BatchOrder, file: KeptFile, progress: BatchProgress) -> str:
        """Answer lines until all are, or time is over; return how the batch ends."""
        lines = asyncio.create_task(self._answer_all(order, file, progress))
        asked = asyncio.create_task(self._cancelling.wait())
        flushing = asyncio.create_task(self._flush(progress))
        left_s = max(0.0, order.expires_at - self._kept.clock())
        try:
            await asyncio.wait(
                (lines, asked, flushing), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if flushing.done():
                flushing.result()
            if lines.done():
                lines.result()
                return "completed"
            return "cancelled" if asked.done() else "expired"
        finally:
            await stop(lines, asked, flushing)

    async def _flush(self, progress: BatchProgress) -> None:
        while True:
            await asyncio.sleep(self._pace.flush_s)
            await progress.flush()

    async def _answer_all(self, order: BatchOrder, file: KeptFile, progress: BatchProgress) -> None:
        running: set[asyncio.Task[None]] = set()
        done = progress.answered
        try:
            async for number, raw in lines_of(self._files.content(order.owner, file)):
                if number in done:
                    continue
                line = read_line(number, raw, order.endpoint)
                turn = await self._turn(order)
                task = asyncio.create_task(self._answer_one(order, line, turn, progress))
                running.add(task)
                task.add_done_callback(partial(self._done, turn))
                for ended in [task for task in running if task.done()]:
                    running.discard(ended)
                    ended.result()
            await asyncio.gather(*running)
        finally:
            await stop(*running)

    async def _turn(self, order: BatchOrder) -> LineTurn:
        """Wait until one more line may run, by this gateway's slots and the limits of its key.

        What waits for its key holds no slot: batches of other keys go on.
        """
        while True:
            await self._slots.acquire()
            try:
                return self._runner.begin(order)
            except LimitExceeded as refusal:
                self._slots.release()
                await self._runner.sleep(refusal.retry_after_s or 1.0)

    def _done(self, turn: LineTurn, _: asyncio.Task[None]) -> None:
        self._slots.release()
        self._runner.end(turn)

    async def _answer_one(
        self, order: BatchOrder, line: BatchLine, turn: LineTurn, progress: BatchProgress
    ) -> None:
        await progress.add(await self._runner.run(order, line, turn))

    async def _finish(self, order: BatchOrder, progress: BatchProgress) -> None:
        """Write the files and the outcome. All is read from the log, so whoever does it, and
        however often, writes the same."""
        assert progress.ending is not None
        status, missing = progress.ending.ending, 0

        async def bad() -> AsyncIterator[str]:
            nonlocal missing
            async for text in self._logged(good=False):
                yield text
            async for text in self._unanswered(order, status, progress):
                missing += 1
                yield text

        output_file_id = await self._write(order, "output", self._logged(good=True))
        error_file_id = await self._write(order, "error", bad())
        done = BatchDone(
            status=status,
            at=self._now(),
            finalizing_at=progress.ending.at,
            completed=progress.completed,
            failed=progress.failed + missing,
            output_file_id=output_file_id,
            error_file_id=error_file_id,
        )
        await self._kept.finish(self._place, done)
        log.info(
            "batch %s is %s: %d lines good, %d bad", order.id, status, done.completed, done.failed
        )

    async def _logged(self, *, good: bool) -> AsyncIterator[str]:
        async for entry in self._kept.log(self._place):
            for result in entry.results:
                if result.good is good:
                    yield result.text

    async def _unanswered(
        self, order: BatchOrder, status: str, progress: BatchProgress
    ) -> AsyncIterator[str]:
        """Yield an error line for each line of the input that has no result."""
        if status not in _UNANSWERED or await self._kept.checked(self._place) is None:
            return
        code, message = _UNANSWERED[status]
        try:
            file = await self._files.get(order.owner, order.input_file_id)
        except NotFound:
            return
        async for number, raw in lines_of(self._files.content(order.owner, file)):
            if number not in progress.answered:
                line = read_line(number, raw, order.endpoint)
                yield line_text(order, line, error={"code": code, "message": message})

    async def _write(self, order: BatchOrder, kind: str, lines: AsyncIterator[str]) -> str | None:
        """Write a file under an id that the batch determines; None: it would be empty."""
        first = await anext(lines, None)
        if first is None:
            return None

        async def content() -> AsyncIterator[bytes]:
            yield first.encode() + b"\n"
            async for line in lines:
                yield line.encode() + b"\n"

        file = await self._files.add(
            order.owner,
            content(),
            filename=f"{order.id}_{kind}.jsonl",
            purpose="batch_output",
            ttl_s=order.output_ttl_s,
            id=file_id(order.id, kind),
        )
        return file.id

    def _now(self) -> int:
        return int(self._kept.clock())


def file_id(batch_id: str, kind: str) -> str:
    """Return the id of a batch's output or error file, always the same."""
    made = batch_id.removeprefix(PREFIX)[:10]
    return f"{FILE_PREFIX}{made}{hashlib.sha256(f'{batch_id} {kind}'.encode()).hexdigest()[:22]}"
