"""The log: whatever happens to its writer, what was acknowledged is read again."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin_server.storage.envelope import CorruptLog
from admin_server.storage.record_log import Deposed, LateRecord, RecordLog
from sax.names import CellId
from sax.storage.object_store import ObjectMissing, ObjectStore, StoreUnavailable, open_store

CELL = CellId("test")
RECORDS, SNAPSHOTS = "sax/test/records", "sax/test/snapshots"


class Crash(BaseException):
    """The process is gone."""


class CrashingStore:
    """A store that ends its process at the n-th operation, done or not done.

    With `answers_lost` the process lives on: it only never hears of that operation.
    """

    def __init__(
        self, store: ObjectStore, at: int, *, done: bool, answers_lost: bool = False
    ) -> None:
        self._store = store
        self._left = at
        self._done = done
        self._error = StoreUnavailable("lost") if answers_lost else Crash()

    async def _operate(self, operation):
        self._left -= 1
        if self._left == 0 and not self._done:
            operation.close()
            raise self._error
        result = await operation
        if self._left == 0:
            raise self._error
        return result

    async def create(self, name: str, data: bytes) -> None:
        await self._operate(self._store.create(name, data))

    async def get(self, name: str) -> bytes:
        return await self._operate(self._store.get(name))

    async def names(self, prefix: str) -> list[str]:
        return await self._operate(self._store.names(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:  # one operation each: a crash may come between any two
            await self._operate(self._store.delete([name]))


async def read(store: ObjectStore) -> list[int]:
    """The log as the list of the numbers that its writer appended."""
    _, history = await RecordLog.open(store, CELL)
    snapshot = history.snapshot.decode() if history.snapshot else "[]"
    kept = [int(part) for part in snapshot.strip("[]").split(",") if part]
    return kept + [int(text) for _, text in history.records]


async def write(log: RecordLog, start: int, end: int, every: int, acknowledged: list[int]) -> None:
    """Append the numbers from start to end, with a snapshot every so many."""
    state = list(range(start))
    for number in range(start, end):
        try:
            await log.append(str(number).encode())
        except LateRecord:
            pytest.fail("nothing was late here")
        acknowledged.append(number)
        state.append(number)
        if log.sequence - log.snapshot_sequence >= every:
            await log.compact(log.sequence, str(state).replace(" ", "").encode())


async def crash_and_read(store: ObjectStore, at: int, done: bool, every: int) -> None:
    acknowledged: list[int] = []
    crashing = CrashingStore(store, at, done=done)
    try:
        log, _ = await RecordLog.open(crashing, CELL)
        await write(log, 0, 12, every, acknowledged)
    except Crash:
        pass
    found = await read(store)
    assert found in (acknowledged, [*acknowledged, len(acknowledged)])
    # Life goes on after the crash, and a second one loses nothing either.
    log, _ = await RecordLog.open(store, CELL)
    more: list[int] = []
    await write(log, len(found), len(found) + 5, every, more)
    assert await read(store) == [*found, *more]


@pytest.mark.extended
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("every", [3, pytest.param(100, marks=pytest.mark.nightly)])
async def test_a_crash_at_any_store_operation_loses_nothing_that_was_acknowledged(every, done):
    for at in range(1, 60):
        await crash_and_read(open_store("memory://"), at, done, every)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 45), st.booleans(), st.sampled_from([2, 5, 100]))
def test_a_crash_on_local_disk_loses_nothing_that_was_acknowledged(at, done, every):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(crash_and_read(open_store(folder), at, done, every))


@pytest.mark.extended
@pytest.mark.parametrize("done", [False, True])
async def test_a_lost_answer_of_the_store_loses_and_doubles_nothing(done):
    for at in range(3, 16):
        store = open_store("memory://")
        log, _ = await RecordLog.open(CrashingStore(store, at, done=done, answers_lost=True), CELL)
        state: list[int] = []
        for number in range(5):
            while number not in state:
                try:
                    await log.append(str(number).encode())
                    state.append(number)
                except LateRecord as late:
                    state.append(int(late.text))
                except StoreUnavailable:
                    continue
        assert state == list(range(5))
        assert await read(store) == state


async def test_the_second_of_two_writers_takes_over_and_the_first_steps_down():
    store = open_store("memory://")
    first, _ = await RecordLog.open(store, CELL)
    await first.append(b"1")
    second, _ = await RecordLog.open(store, CELL)
    await second.append(b"2")
    with pytest.raises(Deposed, match="records/000000000002"):
        await first.append(b"3")
    assert await read(store) == [1, 2]


@pytest.mark.extended
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_a_writer_that_slept_through_a_compaction_is_never_told_that_it_wrote(every, first, second):
    async def story() -> None:
        store = open_store("memory://")
        sleeper, _ = await RecordLog.open(store, CELL)
        await write(sleeper, 0, first, 100, [])
        leader, _ = await RecordLog.open(store, CELL)
        await write(leader, first, first + second, every, [])
        with pytest.raises(Deposed):
            await sleeper.append(b"999")
        with pytest.raises(Deposed):
            await sleeper.append(b"999")
        assert await read(store) == list(range(first + second))

    asyncio.run(story())


async def test_two_writers_never_write_the_same_number():
    store = open_store("memory://")
    logs = [(await RecordLog.open(store, CELL))[0] for _ in range(4)]
    results = await asyncio.gather(*(log.append(b"1") for log in logs), return_exceptions=True)
    assert sum(result == 1 for result in results) == 1
    assert sum(isinstance(result, Deposed) for result in results) == 3


async def test_old_records_and_snapshots_are_deleted_once_the_snapshot_is_there(tmp_path):
    store = open_store(str(tmp_path))
    log, _ = await RecordLog.open(store, CELL)
    await write(log, 0, 10, 4, [])
    assert await store.names(SNAPSHOTS) == [f"{SNAPSHOTS}/{8:012d}"]
    assert await store.names(RECORDS) == [f"{RECORDS}/{9:012d}", f"{RECORDS}/{10:012d}"]
    assert await read(store) == list(range(10))


async def log_of_five(folder: Path) -> ObjectStore:
    store = open_store(str(folder))
    log, _ = await RecordLog.open(store, CELL)
    await write(log, 0, 5, 100, [])
    return store


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda folder: (folder / f"{3:012d}").unlink(), "000000000003 is missing"),
        (lambda folder: (folder / f"{1:012d}").unlink(), "000000000001 is missing"),
        (lambda folder: (folder / f"{5:012d}").write_bytes(b""), "000000000005 is torn"),
        (lambda folder: cut(folder / f"{4:012d}"), "000000000004 is torn"),
        (lambda folder: flip(folder / f"{2:012d}"), "000000000002 does not match its checksum"),
        (
            lambda folder: (folder / f"{2:012d}").write_bytes((folder / f"{3:012d}").read_bytes()),
            "000000000002 is foreign",
        ),
        (lambda folder: (folder / "notes.txt").write_text("hello"), "notes.txt is foreign"),
        (lambda folder: (folder / f"{6:012d}").write_text("hello"), "000000000006 is torn"),
    ],
)
async def test_a_harmed_record_is_reported_by_its_name(tmp_path, harm, complaint):
    store = await log_of_five(tmp_path)
    harm(tmp_path / RECORDS)
    with pytest.raises(CorruptLog, match=complaint):
        await RecordLog.open(store, CELL)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"text":1', b'"text":7'))


async def test_a_record_of_another_cell_is_foreign(tmp_path):
    store = await log_of_five(tmp_path)
    (tmp_path / "sax/other").mkdir()
    (tmp_path / RECORDS).rename(tmp_path / "sax/other/records")
    with pytest.raises(CorruptLog, match="foreign"):
        await RecordLog.open(store, CellId("other"))


async def test_a_harmed_snapshot_is_reported_and_not_skipped(tmp_path):
    store = open_store(str(tmp_path))
    log, _ = await RecordLog.open(store, CELL)
    await write(log, 0, 4, 4, [])
    cut(tmp_path / SNAPSHOTS / f"{4:012d}")
    with pytest.raises(CorruptLog, match="snapshots/000000000004 is torn"):
        await RecordLog.open(store, CELL)


class VanishingStore(CrashingStore):
    """A store whose first read object has just been deleted by somebody's compaction."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store, -1, done=True)
        self.reads = 0

    async def get(self, name: str) -> bytes:
        self.reads += 1
        if self.reads == 1:
            raise ObjectMissing(name)
        return await super().get(name)


async def test_a_log_that_is_compacted_while_it_is_read_is_read_again(tmp_path):
    store = await log_of_five(tmp_path)
    assert await read(VanishingStore(store)) == list(range(5))
