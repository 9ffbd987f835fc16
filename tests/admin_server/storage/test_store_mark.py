"""A store that is deleted or replaced under an admin server: nothing is acknowledged there."""

import shutil

import pytest

from admin_server.ledger.ledger import Ledger
from admin_server.ledger.records import encode_record
from admin_server.ledger.state import CellState, publish_record
from admin_server.storage.envelope import name_of
from admin_server.storage.record_log import RecordLog
from admin_server.storage.store_mark import StoreMark
from sax.errors import StateLost
from sax.names import CellId
from sax.storage.object_store import ObjectStore, StoreReplaced, open_store
from sax.types import ModelSpec

CELL = CellId("test")


@pytest.fixture
def store(place):
    return open_store(place.url, timeout_s=60)


def publishing(name: str):
    spec = ModelSpec(model_id=f"/sax/test/{name}", model_path="x", checkpoint="None", replicas=1)
    return lambda state: publish_record(state, spec, version="1" * 32, at_s=0)


async def empty(store: ObjectStore) -> dict[str, bytes]:
    """Delete everything; returns what there was."""
    there = {name: await store.get(name) for name in await store.names("sax")}
    await store.delete(list(there))
    return there


async def refill(store: ObjectStore, objects: dict[str, bytes]) -> None:
    await empty(store)
    for name, data in objects.items():
        await store.create(name, data)


async def test_a_store_keeps_its_mark(store):
    first, second = StoreMark(store, CELL), StoreMark(store, CELL)
    await first.settle()
    await second.settle()
    await first.check()
    await second.check()


async def test_an_emptied_store_takes_no_change_until_it_is_back(store):
    ledger = await Ledger.open(store, CELL, snapshot_every=100)
    await ledger.commit(publishing("m"))
    there = await empty(store)
    with pytest.raises(StateLost, match=r"mark/0+1 is gone.*Bring it back"):
        await ledger.commit(publishing("n"))
    assert ledger.store_health.replaced
    assert await store.names("sax") == []
    await refill(store, there)
    await ledger.commit(publishing("n"))
    assert not ledger.store_health.replaced
    assert (await Ledger.open(store, CELL, snapshot_every=100)).state == ledger.state


async def test_a_store_of_the_same_cell_in_its_place_takes_no_change(store):
    ledger = await Ledger.open(store, CELL, snapshot_every=100)
    await ledger.commit(publishing("m"))
    await empty(store)
    other = await Ledger.open(store, CELL, snapshot_every=100)
    await other.commit(publishing("other"))
    before = await store.names("sax")
    with pytest.raises(StateLost, match="says"):
        await ledger.commit(publishing("n"))
    with pytest.raises(StateLost):
        await ledger.commit(publishing("m"))  # a refusal would rest on what is gone
    assert await store.names("sax") == before
    await other.commit(publishing("more"))


async def test_a_process_that_knows_the_mark_opens_no_other_store(store):
    mark = StoreMark(store, CELL)
    await Ledger.open(store, CELL, snapshot_every=100, mark=mark)
    await empty(store)
    with pytest.raises(StoreReplaced):
        await Ledger.open(store, CELL, snapshot_every=100, mark=mark)


@pytest.mark.parametrize("harm", ["gone", "torn", "another"])
async def test_a_leader_that_cannot_read_its_last_record_acknowledges_nothing(store, harm):
    log, _ = await RecordLog.open(store, CELL)
    await log.append(b"1")
    await log.append(b"2")
    last = name_of(CELL, "records", 2)
    data = await store.get(last)
    await store.delete([last])
    if harm == "torn":
        await store.create(last, data[:-5])
    if harm == "another":
        await store.create(last, (await written_elsewhere()))
    with pytest.raises(StoreReplaced, match="000000000002"):
        await log.append(b"3")
    with pytest.raises(StoreReplaced, match="000000000002"):
        await log.check()
    await store.delete([last])
    await store.create(last, data)
    assert await log.append(b"3") == 3


async def written_elsewhere() -> bytes:
    elsewhere = open_store("memory://")
    log, _ = await RecordLog.open(elsewhere, CELL)
    await log.append(b"1")
    await log.append(b"7")
    return await elsewhere.get(name_of(CELL, "records", 2))


class LosingStore:
    """Loses everything right after one create, and gets it back at once: a write is gone."""

    def __init__(self, store: ObjectStore, loses: str) -> None:
        self._store = store
        self._loses = loses

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    async def create(self, name: str, data: bytes) -> None:
        if self._loses not in name:
            await self._store.create(name, data)


async def test_a_record_that_is_gone_after_its_write_is_not_acknowledged(store):
    log, _ = await RecordLog.open(LosingStore(store, "records/000000000002"), CELL)
    await log.append(b"1")
    with pytest.raises(StoreReplaced, match="gone right after it was written"):
        await log.append(b"2")


@pytest.mark.parametrize("kind", ["snapshots", "archive"])
async def test_records_are_kept_when_what_replaces_them_is_gone_after_its_write(store, kind):
    log, _ = await RecordLog.open(LosingStore(store, kind), CELL)
    await log.append(b"1")
    await log.append(b"2")
    with pytest.raises(StoreReplaced, match=kind):
        await log.compact(2, b"[1,2]")
    assert len(await store.names("sax/test/records")) == 2


async def test_a_store_of_a_version_without_marks_gets_one(store):
    log, _ = await RecordLog.open(store, CELL)
    await log.append(publishing_text())
    ledger = await Ledger.open(store, CELL, snapshot_every=100)
    await ledger.commit(publishing("n"))
    assert set(ledger.state.models) == {"/sax/test/m", "/sax/test/n"}
    assert await store.names("sax/test/mark") == [name_of(CELL, "mark", 1)]


def publishing_text() -> bytes:
    return encode_record(publishing("m")(CellState("/sax/test")))


async def test_a_deleted_folder_is_not_made_again(tmp_path):
    root = tmp_path / "state"
    ledger = await Ledger.open(open_store(str(root)), CELL, snapshot_every=100)
    await ledger.commit(publishing("m"))
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(StateLost, match="deleted or replaced"):
        await ledger.commit(publishing("n"))
    assert not root.exists()
    shutil.copytree(tmp_path / "elsewhere", root)
    await ledger.commit(publishing("n"))
