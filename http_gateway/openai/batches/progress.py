"""BatchProgress: the answered lines of one batch, written to its log before they count."""

from __future__ import annotations

import asyncio

from http_gateway.openai.batches.kept_batches import KeptBatches, Place
from http_gateway.openai.batches.records import LineResult, LogEntry

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
