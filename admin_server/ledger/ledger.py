"""The published state of a cell and its log: a change takes effect once it is durable.

One change at a time. A follower only reads (`follow`) and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

from admin_server.ledger.records import (
    Lead,
    Record,
    decode_record,
    encode_record,
    kind_of,
    model_of,
    version_of,
)
from admin_server.ledger.state import CellState, apply, decode_state, encode_state
from admin_server.storage.envelope import CorruptLog
from admin_server.storage.record_log import Deposed, LateRecord, LogContents, RecordLog
from admin_server.storage.store_check import StoreHealth
from admin_server.storage.store_mark import StoreMark
from sax.errors import (
    AdminUnavailable,
    InvalidRequest,
    ModelExists,
    NotFound,
    NotLeading,
    StaleRevision,
    StateLost,
)
from sax.names import CellId
from sax.storage.object_store import TIMEOUT_S, ObjectStore, StoreReplaced, StoreUnavailable
from sax.types import Event

_log = logging.getLogger(__name__)
_RECENT = 50
# Refusals that depend on the state, and may be wrong if the state is old.
_REFUSALS = (ModelExists, NotFound, StaleRevision)


@dataclass(frozen=True, slots=True)
class Entry:
    sequence: int
    record: Record


class Ledger:
    """The state, and the only way to change it."""

    def __init__(
        self,
        log: RecordLog,
        cell: CellId,
        *,
        snapshot_every: int,
        health: StoreHealth | None = None,
        patience_s: float = TIMEOUT_S,
    ) -> None:
        """A change waits at most `patience_s` for its turn, and again for the store."""
        self._log = log
        self._snapshot_every = snapshot_every
        self._one_change = asyncio.Lock()
        self._compaction: asyncio.Task[None] | None = None
        self.state = CellState(str(cell))
        self.recent: deque[Entry] = deque(maxlen=_RECENT)
        self._patience_s = patience_s
        self.store_health = health or StoreHealth(time.time)
        self.deposed = asyncio.Event()  # another admin leads: no more writes

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        cell: CellId,
        *,
        snapshot_every: int,
        health: StoreHealth | None = None,
        patience_s: float = TIMEOUT_S,
        mark: StoreMark | None = None,
    ) -> Ledger:
        """Restore the state from the log. Raises CorruptLog, StoreUnavailable.

        `mark` is the store's as this process knows it from before, if it does.
        """
        mark = mark or StoreMark(store, cell)
        await mark.settle()
        log, history = await RecordLog.open(store, cell, mark)
        ledger = cls(log, cell, snapshot_every=snapshot_every, health=health, patience_s=patience_s)
        ledger._read(history)
        return ledger

    async def follow(self) -> None:
        """Apply what the leader has written since. Raises CorruptLog, StoreUnavailable."""
        self._read(await self._log.catch_up())

    async def check(self) -> None:
        """Check whether another admin leads, and whether a write that failed had landed.

        Sets `deposed`. Raises StoreUnavailable.
        """
        async with self._one_change:
            await self._look()

    async def entries(self, before: int, limit: int, model_id: str = "") -> list[Entry]:
        """At most `limit` records before the number `before`, newest first; of one model if named.

        `before` 0 means up to the newest. Reads back through the archives.

        Raises CorruptLog, StoreUnavailable.
        """
        before = before or self.sequence + 1
        found: dict[int, Record] = {}

        def pick(texts: Iterable[tuple[int, bytes]]) -> None:
            records = ((n, decode_record(text)) for n, text in texts if n < before)
            found.update((n, r) for n, r in records if model_id in ("", model_of(r)))

        pick(self._log.unarchived)
        ends = [0, *await self._log.archives()]
        for start, end in reversed(list(pairwise(ends))):
            if len(found) >= limit:
                break
            if start + 1 < before:
                pick(await self._log.archived(end))
        return [Entry(n, found[n]) for n in sorted(found, reverse=True)[:limit]]

    @property
    def store_trouble(self) -> str:
        """Why the last change could not be made durable; empty if it was."""
        return self.store_health.trouble

    @property
    def sequence(self) -> int:
        return self._log.sequence

    async def take_lead(self, admin: str, address: str, at_s: float) -> int:
        """Become the leader; returns the term. Raises NotLeading if another server was faster.

        Does not read the log first: anything written since the last look makes the write fail.
        Raises AdminUnavailable.
        """
        await self.commit(lambda state: Lead(admin, at_s, address, "leads from here on"))
        return self.state.term

    async def commit(self, make: Callable[[CellState], Record | None]) -> None:
        """Make a record from the current state, and return once it is durable and applied.

        Errors raised by `make` reach the caller. Raises NotLeading if the change was certainly not
        made, AdminUnavailable if the store fails: the state is unchanged, but an unconfirmed record
        may turn out to have landed. Raises StateLost if the store was deleted or replaced.
        """
        # A cancelled caller must not leave a record that is written but not applied.
        await asyncio.shield(asyncio.ensure_future(self._commit(make)))

    async def close(self) -> None:
        async with self._one_change:
            if self._compaction is not None:
                await asyncio.wait([self._compaction])

    async def _commit(self, make: Callable[[CellState], Record | None]) -> None:
        async with self._turn():
            while (record := await self._make(make)) is not None:
                if await self._append(record):
                    break
        self._compact_if_due()

    async def _make(self, make: Callable[[CellState], Record | None]) -> Record | None:
        """Call `make`; trust a refusal, or no record, only on the newest state.

        A record needs no such check: the log refuses records made from an old state.
        """
        while True:
            state = self.state
            try:
                record, refusal = make(state), None
            except _REFUSALS as exc:
                record, refusal = None, exc
            if record is not None:
                return record
            await self._check_newest()
            if state is self.state:
                break
        if refusal is not None:
            raise refusal
        return None

    async def _check_newest(self) -> None:
        """Raises NotLeading if another admin has changed the state since, AdminUnavailable."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self._look()
        except StoreUnavailable as exc:
            raise self._refusal(exc) from exc
        except TimeoutError as exc:
            raise self._refusal(self._too_slow()) from exc
        if self.deposed.is_set():
            raise NotLeading("another admin server leads this cell now; retry", param="")

    async def _look(self) -> None:
        try:
            await self._log.check()
        except LateRecord as late:
            self._late(late)
        except Deposed as exc:
            self._step_down(exc)

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._one_change.acquire()
        except TimeoutError as exc:
            raise AdminUnavailable(
                "earlier changes are still waiting for the store; nothing was written, try again"
            ) from exc
        try:
            yield
        finally:
            self._one_change.release()

    async def _append(self, record: Record) -> bool:
        """Write and apply one record; False if an earlier one turned out to have landed."""
        try:
            async with asyncio.timeout(self._patience_s):
                sequence = await self._log.append(encode_record(record))
        except LateRecord as late:
            self._late(late)
            return False
        except Deposed as exc:
            self._step_down(exc)
            if exc.unsure:
                raise _unconfirmed(exc.text) from exc
            raise NotLeading(f"{exc.text}; retry", param="") from exc
        except StoreUnavailable as exc:
            raise self._refusal(exc) from exc
        except TimeoutError as exc:
            raise self._refusal(self._too_slow()) from exc
        self._take(sequence, record)
        return True

    def _late(self, late: LateRecord) -> None:
        _log.warning("record %d was written after all", late.sequence)
        self._take(late.sequence, decode_record(late.text))

    def _step_down(self, exc: Deposed) -> None:
        if not self.deposed.is_set():
            _log.error("%s", exc.text)
        self.deposed.set()

    def _take(self, sequence: int, record: Record) -> None:
        self.state = apply(self.state, record, sequence)
        self.recent.append(Entry(sequence, record))
        self.store_health.succeeded()

    def _refusal(self, exc: StoreUnavailable) -> AdminUnavailable:
        self.store_health.failed_by(exc)
        return StateLost(exc.text) if isinstance(exc, StoreReplaced) else _unconfirmed(exc.text)

    def _too_slow(self) -> StoreUnavailable:
        return StoreUnavailable(f"the store took more than {self._patience_s:g} s")

    def _read(self, history: LogContents) -> None:
        if history.snapshot is not None:
            self.state = decode_state(history.snapshot)
            self.recent.clear()
        for sequence, text in history.records:
            self._take(sequence, decode_record(text))

    def _compact_if_due(self) -> None:
        due = self._log.sequence - self._log.snapshot_sequence >= self._snapshot_every
        if due and (self._compaction is None or self._compaction.done()):
            snapshot = encode_state(self.state)
            self._compaction = asyncio.create_task(self._compact(self._log.sequence, snapshot))

    async def _compact(self, sequence: int, snapshot: bytes) -> None:
        try:
            await self._log.compact(sequence, snapshot)
        except Deposed as exc:
            self._step_down(exc)
        except (StoreUnavailable, CorruptLog) as exc:
            # Nothing is lost: the records remain, and the next change tries again.
            _log.warning("no snapshot of record %d yet: %s", sequence, exc.text)


def _unconfirmed(why: str) -> AdminUnavailable:
    return AdminUnavailable(
        f"the change could not be confirmed as durable: {why}. It may still take effect, "
        "as a whole or not at all: check, then try again"
    )


USUAL_EVENTS = 100
_MOST_EVENTS = 1000  # per response; `before` pages further back


def event_of(entry: Entry) -> Event:
    record = entry.record
    return Event(
        sequence=entry.sequence,
        at_s=record.at_s,
        kind=kind_of(record),
        model_id=model_of(record),
        by=record.by,
        version=version_of(record),
        text=record.note,
    )


def check_page(before: int, limit: int) -> int:
    """The number of events to return. Raises InvalidRequest naming the bad number."""
    if before < 0:
        raise InvalidRequest(
            f"before {before}: use the number of an event, or 0 for the newest", param="before"
        )
    if not 0 <= limit <= _MOST_EVENTS:
        raise InvalidRequest(
            f"limit {limit}: use 1 to {_MOST_EVENTS}, or 0 for {USUAL_EVENTS}", param="limit"
        )
    return limit or USUAL_EVENTS
