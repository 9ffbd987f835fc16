"""The laws of the log, on every kind of store that state may be kept in."""

import asyncio

import pytest

from admin_server.ledger.ledger import Ledger
from admin_server.storage.record_log import CorruptLog, Deposed, LateRecord, RecordLog
from admin_server.storage.store_check import check_creates_once
from sax.errors import InvalidRequest
from sax.storage.object_store import ObjectStore, StoreUnavailable, open_store
from tests.admin_server.ledger.test_ledger import publishing
from tests.admin_server.storage.test_record_log import CELL, RECORDS, SNAPSHOTS, read, write
from tests.stores.faulty_store import FaultyStore
from tests.stores.fixtures import KEPT

MODELS = 8


@pytest.fixture
def store(place) -> ObjectStore:
    return open_store(place.url, timeout_s=60)


def name(kind: str, number: int) -> str:
    return f"{kind}/{number:012d}"


@pytest.mark.extended
async def test_each_number_is_won_by_exactly_one_of_many_writers(store):
    """Each writer takes over again whenever it is deposed, until it wrote its share."""
    won: dict[int, bytes] = {}

    async def compete(who: int) -> None:
        log, _ = await RecordLog.open(store, CELL)
        for turn in range(6):
            text = f"{who}{turn}".encode()
            while True:
                try:
                    number = await log.append(text)
                    break
                except Deposed:
                    log, _ = await RecordLog.open(store, CELL)
            assert number not in won
            won[number] = text

    await asyncio.gather(*(compete(who) for who in range(1, 5)))
    _, history = await RecordLog.open(store, CELL)
    assert dict(history.records) == won
    assert sorted(won) == list(range(1, 25))


async def test_the_second_writer_takes_over_and_the_first_steps_down(store):
    first, _ = await RecordLog.open(store, CELL)
    await first.append(b"1")
    second, _ = await RecordLog.open(store, CELL)
    await second.append(b"2")
    with pytest.raises(Deposed, match="records/000000000002"):
        await first.append(b"3")
    assert await read(store) == [1, 2]


async def test_a_writer_that_slept_through_a_compaction_is_deposed(store):
    sleeper, _ = await RecordLog.open(store, CELL)
    await write(sleeper, 0, 2, 100, [])
    leader, _ = await RecordLog.open(store, CELL)
    await write(leader, 2, 6, 3, [])
    with pytest.raises(Deposed):
        await sleeper.append(b"999")
    assert await read(store) == list(range(6))


async def test_a_snapshot_replaces_what_is_older(store):
    log, _ = await RecordLog.open(store, CELL)
    await write(log, 0, 10, 4, [])
    assert await store.names(SNAPSHOTS) == [name(SNAPSHOTS, 8)]
    assert await store.names(RECORDS) == [name(RECORDS, 9), name(RECORDS, 10)]
    assert await read(store) == list(range(10))


@pytest.mark.extended
async def test_a_log_is_read_whole_while_its_writer_compacts_it(store):
    log, _ = await RecordLog.open(store, CELL)
    acknowledged: list[int] = []
    writing = asyncio.ensure_future(write(log, 0, 30, 3, acknowledged))
    while not writing.done():
        before = [*acknowledged]
        found = await read(store)
        assert found[: len(before)] == before
        assert found == list(range(len(found)))
    await writing
    assert await read(store) == list(range(30))


@pytest.mark.extended
async def test_many_records_are_read_in_order(store):
    log, _ = await RecordLog.open(store, CELL)
    await write(log, 0, 120, 1000, [])
    assert await read(store) == list(range(120))


async def harmed(store: ObjectStore, number: int, data: bytes | None) -> None:
    """A log of five, one of them deleted or with other bytes."""
    log, _ = await RecordLog.open(store, CELL)
    await write(log, 0, 5, 100, [])
    await store.delete([name(RECORDS, number)])
    if data is not None:
        await store.create(name(RECORDS, number), data)


@pytest.mark.parametrize(
    ("number", "data", "complaint"),
    [
        (3, None, "000000000003 is missing"),
        (4, b"", "000000000004 is torn"),
        (5, b'{"format":1', "000000000005 is torn"),
    ],
)
async def test_a_harmed_record_is_reported_by_its_name(store, number, data, complaint):
    await harmed(store, number, data)
    with pytest.raises(CorruptLog, match=complaint):
        await RecordLog.open(store, CELL)


async def test_a_foreign_object_is_reported_by_its_name(store):
    log, _ = await RecordLog.open(store, CELL)
    await log.append(b"1")
    await store.create(f"{RECORDS}/notes.txt", b"hello")
    with pytest.raises(CorruptLog, match=r"notes\.txt is foreign"):
        await RecordLog.open(store, CELL)


async def test_what_is_acknowledged_is_there_for_whoever_opens_the_ledger_next(store):
    ledger = await Ledger.open(store, CELL, snapshot_every=3)
    for number in range(MODELS):
        await ledger.commit(publishing(f"m{number}"))
        other = await Ledger.open(store, CELL, snapshot_every=3)
        assert other.state == ledger.state
    await ledger.close()
    assert len((await Ledger.open(store, CELL, snapshot_every=3)).state.models) == MODELS


@pytest.mark.parametrize("place", KEPT, indirect=True)
async def test_another_connection_to_the_same_place_restores_the_ledger(place):
    ledger = await Ledger.open(open_store(place.url), CELL, snapshot_every=100)
    await ledger.commit(publishing("m"))
    other = await Ledger.open(open_store(place.url), CELL, snapshot_every=100)
    assert other.state == ledger.state


@pytest.mark.parametrize("done", ["before", "after"])
async def test_a_lost_answer_loses_and_doubles_nothing(store, done):
    faulty = FaultyStore(store)
    log, _ = await RecordLog.open(faulty, CELL)
    await log.append(b"0")
    faulty.fails = done
    with pytest.raises(StoreUnavailable):
        await log.append(b"1")
    faulty.fails = ""
    if done == "after":
        with pytest.raises(LateRecord):
            await log.append(b"2")
    assert await log.append(b"2") == (3 if done == "after" else 2)


async def test_each_kind_of_store_honours_create_if_absent_and_keeps_no_trace_of_the_question(
    store,
):
    await check_creates_once(store, CELL)
    assert await store.names("sax") == []


class ForgetfulStore(FaultyStore):
    """Ignores the condition, as `rclone serve s3` does."""

    async def create(self, name: str, data: bytes) -> None:
        await self.store.replace(name, data)


async def test_a_store_that_ignores_create_if_absent_is_refused():
    with pytest.raises(InvalidRequest, match="ignores create-if-absent") as refusal:
        await check_creates_once(ForgetfulStore(), CELL)
    assert refusal.value.param == "fs_root"
