"""Read the numbered objects of a log, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from admin_server.storage.envelope import CorruptLog, name_of, unwrap
from sax.names import CellId
from sax.storage.object_store import ObjectStore

_READS_AT_ONCE = 16


async def read_object(store: ObjectStore, cell: CellId, kind: str, number: int) -> bytes:
    """The text of one object. Raises ObjectMissing, CorruptLog, StoreUnavailable."""
    return unwrap(cell, kind, number, await store.get(name_of(cell, kind, number)))[1]


async def read_records(store: ObjectStore, cell: CellId, numbers: Sequence[int]) -> list[bytes]:
    """The texts of these records, in order. Raises as `read_object` does."""
    slots = asyncio.Semaphore(_READS_AT_ONCE)

    async def read(number: int) -> bytes:
        async with slots:
            return await read_object(store, cell, "records", number)

    return await asyncio.gather(*map(read, numbers))


def check_gapless(cell: CellId, last: int, numbers: Sequence[int]) -> None:
    """Raises CorruptLog unless the numbers follow on `last` without a gap."""
    for expected, number in enumerate(numbers, start=last + 1):
        if number != expected:
            raise CorruptLog(
                f"{name_of(cell, 'records', expected)} is missing (the next existing one is "
                f"{name_of(cell, 'records', number)}): restore it from a backup"
            )


async def all_hold(*checks: Awaitable[None]) -> None:
    """Await checks at once; raise the first failure in the order of the arguments."""
    for failure in await asyncio.gather(*checks, return_exceptions=True):
        if failure is not None:
            raise failure
