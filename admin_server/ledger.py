"""The published state of a cell and its log, kept as one: nothing is true before it is durable.

One change at a time. Knows nothing of servers, clients or the wire.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from admin_server.object_store import ObjectStore, StoreUnavailable
from admin_server.record_log import CorruptLog, Deposed, History, LateRecord, RecordLog
from admin_server.records import Record, decode_record, encode_record, model_of
from admin_server.state import CellState, apply, decode_state, encode_state
from sax.errors import AdminUnavailable
from sax.names import CellId

_log = logging.getLogger(__name__)
_RECENT = 50


@dataclass(frozen=True, slots=True)
class Entry:
    """A record and its number."""

    sequence: int
    record: Record


class Ledger:
    """The state, and the only way to change it."""

    def __init__(self, log: RecordLog, state: CellState, *, snapshot_every: int) -> None:
        self._log = log
        self._snapshot_every = snapshot_every
        self._one_change = asyncio.Lock()
        self._compaction: asyncio.Task[None] | None = None
        self.state = state
        self.recent: deque[Entry] = deque(maxlen=_RECENT)
        self.store_trouble = ""  # why the last change could not be made durable
        self.deposed = asyncio.Event()  # another admin leads: this one must stop

    @classmethod
    async def open(cls, store: ObjectStore, cell: CellId, *, snapshot_every: int) -> Ledger:
        """Restore the state from the log. Raises CorruptLog, StoreUnavailable."""
        log, history = await RecordLog.open(store, cell)
        state = _restore(cell, history)
        ledger = cls(log, state, snapshot_every=snapshot_every)
        ledger.recent.extend(Entry(n, decode_record(text)) for n, text in history.records)
        return ledger

    @property
    def sequence(self) -> int:
        """The number of the last record."""
        return self._log.sequence

    async def commit(self, make: Callable[[CellState], Record | None]) -> None:
        """Make a record from the state as it is, and return once it is durable and applied.

        What `make` raises goes to the caller. Raises AdminUnavailable when the store fails: the
        state is unchanged, and the same change may be tried again.
        """
        # A caller that goes away must not leave a record that is written but not applied.
        await asyncio.shield(asyncio.ensure_future(self._commit(make)))

    async def entries(self, before: int, limit: int, model_id: str = "") -> list[Entry]:
        """The newest first: at most `limit` before this number (0: up to the newest)."""
        return [
            entry
            for entry in reversed(self.recent)
            if (not before or entry.sequence < before)
            and (not model_id or model_of(entry.record) == model_id)
        ][:limit]

    async def close(self) -> None:
        """Wait until nothing is being written."""
        async with self._one_change:
            if self._compaction is not None:
                await asyncio.wait([self._compaction])

    async def _commit(self, make: Callable[[CellState], Record | None]) -> None:
        async with self._one_change:
            while (record := make(self.state)) is not None:
                if await self._append(record):
                    break
        self._compact_if_due()

    async def _append(self, record: Record) -> bool:
        """Write and apply one record; False if an earlier one came to light instead."""
        try:
            sequence = await self._log.append(encode_record(record))
        except LateRecord as late:
            _log.warning("record %d was written after all", late.sequence)
            self._take(late.sequence, decode_record(late.text))
            return False
        except Deposed as exc:
            self.deposed.set()
            _log.error("%s", exc.text)
            raise AdminUnavailable(f"{exc.text}; ask again") from exc
        except StoreUnavailable as exc:
            self.store_trouble = exc.text
            raise AdminUnavailable(
                f"the change could not be made durable and does not count: {exc.text}; try again"
            ) from exc
        self._take(sequence, record)
        return True

    def _take(self, sequence: int, record: Record) -> None:
        self.state = apply(self.state, record, sequence)
        self.recent.append(Entry(sequence, record))
        self.store_trouble = ""

    def _compact_if_due(self) -> None:
        due = self._log.sequence - self._log.snapshot_sequence >= self._snapshot_every
        if due and (self._compaction is None or self._compaction.done()):
            snapshot = encode_state(self.state)
            self._compaction = asyncio.create_task(self._compact(self._log.sequence, snapshot))

    async def _compact(self, sequence: int, snapshot: bytes) -> None:
        try:
            await self._log.compact(sequence, snapshot)
        except Deposed as exc:
            self.deposed.set()
            _log.error("%s", exc.text)
        except (StoreUnavailable, CorruptLog) as exc:
            # Nothing is lost: the records are still there, and the next change tries again.
            _log.warning("no snapshot of record %d yet: %s", sequence, exc.text)


def _restore(cell: CellId, history: History) -> CellState:
    state = CellState(str(cell))
    if history.snapshot is not None:
        state = decode_state(history.snapshot)
    for sequence, text in history.records:
        state = apply(state, decode_record(text), sequence)
    return state
