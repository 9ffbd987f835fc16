"""Whether stories find bugs: the code is broken on purpose, and some story must notice.

The breaks replace single methods for the length of one test. Nothing else in the tests does this;
here it is the point.
"""

import asyncio

import pytest

from admin_server.ledger.ledger import Ledger
from admin_server.storage.record_log import Deposed, LateRecord, RecordLog
from admin_server.storage.store_mark import StoreMark
from sax.errors import AdminUnavailable, NotLeading, SaxError
from sax.storage.object_store import StoreUnavailable
from tests.simulation.history import Wrong
from tests.simulation.store import Bucket
from tests.simulation.story import LOSING, SMALL, Shape, play

STORIES = 400  # the first that goes wrong is enough
_append, _write = Ledger._append, RecordLog.append


def overwrite(bucket: Bucket, name: str, data: bytes) -> None:
    """A store that ignores create-if-absent."""
    bucket.objects[name] = data


async def acknowledge_early(ledger: Ledger, make) -> None:
    """The answer does not wait for the store."""
    make(ledger.state)
    asyncio.ensure_future(ledger._commit(make)).add_done_callback(lambda done: done.exception())


async def call_failures_done(ledger: Ledger, record) -> bool:
    """A write of which nobody knows whether it landed is acknowledged."""
    try:
        return await _append(ledger, record)
    except NotLeading:
        raise
    except AdminUnavailable:
        return True


async def write_again(log: RecordLog, text: bytes) -> int:
    """A write that seemed to fail is written again, at the next number."""
    try:
        return await _write(log, text)
    except (LateRecord, Deposed):
        raise
    except StoreUnavailable:
        log.sequence += 1
        return await _write(log, text)


def forget_late(ledger: Ledger, late: LateRecord) -> None:
    """A record that landed after all is not applied."""


async def trust_free_numbers(log: RecordLog, number: int) -> None:
    """A number that is free counts, although the log was compacted beyond it."""


BREAKS = [
    (Bucket, "create", overwrite),
    (Ledger, "commit", acknowledge_early),
    (Ledger, "_append", call_failures_done),
    (RecordLog, "append", write_again),
    (Ledger, "_late", forget_late),
    (RecordLog, "_check_not_deposed", trust_free_numbers),
]


@pytest.mark.extended
@pytest.mark.parametrize(("owner", "name", "broken"), BREAKS, ids=[b.__name__ for *_, b in BREAKS])
def test_a_broken_control_plane_is_found(monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    assert any(goes_wrong(seed) for seed in range(STORIES))


async def trust_any_store(*_: object) -> None:
    """Whatever is found at the place of the store is taken for it."""


def test_a_control_plane_that_trusts_any_store_is_found(monkeypatch):
    monkeypatch.setattr(StoreMark, "check", trust_any_store)
    monkeypatch.setattr(RecordLog, "_check_last", trust_any_store)
    assert any(goes_wrong(seed, LOSING) for seed in range(STORIES))


def goes_wrong(seed: int, shape: Shape = SMALL) -> bool:
    """By what a story looks for, or an error of ours; a break that merely crashes shows nothing."""
    try:
        play(seed, shape)
    except (Wrong, SaxError):
        return True
    return False
