"""The ledger: durable before it is true, and alive when the store is not."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from admin_server.ledger.ledger import Ledger
from admin_server.ledger.state import publish_record, unpublish_record
from sax.errors import AdminUnavailable, ModelExists, ModelNotFound, NotLeading
from sax.names import CellId
from sax.storage.object_store import StoreUnavailable, open_store
from sax.types import ModelSpec
from tests.admin_server.conftest import eventually
from tests.skipped_time import skip
from tests.stores.faulty_store import FaultyStore

CELL = CellId("test")


def publishing(name: str, version: str = "1" * 32):
    spec = ModelSpec(model_id=f"/sax/test/{name}", model_path="x", checkpoint="None", replicas=1)
    return lambda state: publish_record(state, spec, version=version, at_s=0)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


async def open_ledger(store, every: int = 100) -> Ledger:
    return await Ledger.open(store, CELL, snapshot_every=every)


async def begun(store: FaultyStore, change: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A change whose record waits at the store's gate."""
    before = store.writes
    task = asyncio.create_task(change)
    await eventually(lambda: store.writes > before)
    return task


async def test_a_publish_is_durable_before_it_is_acknowledged(store):
    ledger = await open_ledger(store)
    store.gate.clear()
    publish = await begun(store, ledger.commit(publishing("m")))
    assert not publish.done()
    assert ledger.state.models == {}
    store.gate.set()
    await publish
    assert (await open_ledger(store)).state == ledger.state


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_store_that_fails_refuses_the_publish_and_leaves_the_state(store, moment):
    ledger = await open_ledger(store)
    await ledger.commit(publishing("m"))
    before = ledger.state
    store.fails = moment
    with pytest.raises(AdminUnavailable, match="could not be confirmed as durable"):
        await ledger.commit(publishing("n"))
    assert ledger.state is before
    assert "on fire" in ledger.store_trouble


async def test_a_publish_works_again_when_the_store_does(store):
    ledger = await open_ledger(store)
    store.fails = "before"
    with pytest.raises(AdminUnavailable):
        await ledger.commit(publishing("m"))
    store.fails = ""
    await ledger.commit(publishing("n"))
    assert set(ledger.state.models) == {"/sax/test/n"}
    assert ledger.store_trouble == ""
    assert (await open_ledger(store)).state == ledger.state


async def test_a_record_that_landed_late_comes_to_light_at_the_next_change(store):
    ledger = await open_ledger(store)
    store.fails = "after"
    with pytest.raises(AdminUnavailable):
        await ledger.commit(publishing("m"))
    store.fails = ""
    await ledger.commit(publishing("n"))
    assert set(ledger.state.models) == {"/sax/test/m", "/sax/test/n"}
    assert (await open_ledger(store)).state == ledger.state


async def test_a_change_is_checked_anew_after_a_late_record(store):
    ledger = await open_ledger(store)
    store.fails = "after"
    with pytest.raises(AdminUnavailable):
        await ledger.commit(publishing("m"))
    store.fails = ""
    with pytest.raises(ModelExists):
        await ledger.commit(publishing("m", "2" * 32))
    assert (await open_ledger(store)).state == ledger.state


async def test_a_caller_that_goes_away_leaves_log_and_state_alike(store):
    ledger = await open_ledger(store)
    store.gate.clear()
    publish = await begun(store, ledger.commit(publishing("m")))
    publish.cancel()
    store.gate.set()
    await ledger.close()
    assert set(ledger.state.models) == {"/sax/test/m"}
    assert (await open_ledger(store)).state == ledger.state


async def test_a_second_leader_deposes_the_first_which_says_so(store):
    first = await open_ledger(store)
    second = await open_ledger(store)
    await second.commit(publishing("m"))
    with pytest.raises(AdminUnavailable, match="another admin server leads"):
        await first.commit(publishing("n"))
    assert first.deposed.is_set()
    assert not second.deposed.is_set()


async def test_changes_at_the_same_time_are_made_one_after_the_other(store):
    ledger = await open_ledger(store)
    results = await asyncio.gather(
        *(ledger.commit(publishing("m")) for _ in range(5)), return_exceptions=True
    )
    assert [type(result) for result in results].count(ModelExists) == 4
    assert ledger.sequence == 1


async def test_snapshots_are_taken_and_the_state_is_the_same_after_them(store):
    ledger = await open_ledger(store, every=3)
    for number in range(20):
        await ledger.commit(publishing(f"m{number}"))
        if number % 2:
            await ledger.commit(
                lambda state, n=number: unpublish_record(state, f"/sax/test/m{n}", at_s=0)
            )
    await ledger.close()
    assert len(await store.names("sax/test/records")) < 10
    assert (await open_ledger(store)).state == ledger.state


async def test_a_snapshot_that_fails_harms_nothing(store):
    ledger = await open_ledger(store, every=1)
    create = store.create

    async def no_snapshots(name: str, data: bytes) -> None:
        if "snapshots" in name:
            raise StoreUnavailable("full")
        await create(name, data)

    store.create = no_snapshots
    for number in range(3):
        await ledger.commit(publishing(f"m{number}"))
    await ledger.close()
    assert (await open_ledger(store)).state == ledger.state
    assert len(ledger.state.models) == 3


async def test_a_refused_change_writes_nothing(store):
    ledger = await open_ledger(store)
    with pytest.raises(ModelNotFound):
        await ledger.commit(lambda state: unpublish_record(state, "/sax/test/m", at_s=0))
    assert ledger.sequence == 0


async def test_a_store_that_never_answers_refuses_the_change_and_comes_back(store):
    """Both ways of waiting end: for the store, and for a turn behind a change that waits."""
    ledger = await Ledger.open(store, CELL, snapshot_every=100, patience_s=60)
    store.asleep = {"create"}
    changes = asyncio.gather(
        *(ledger.commit(publishing(f"m{n}")) for n in range(5)), return_exceptions=True
    )
    while not changes.done():
        await asyncio.sleep(0.01)
        skip(60)
    assert {type(result) for result in await changes} == {AdminUnavailable}
    # The first may come to light when the second has its turn: it was not confirmed, no more.
    assert set(ledger.state.models) <= {"/sax/test/m0"}
    assert "more than 60 s" in ledger.store_trouble
    store.asleep = set()
    await ledger.commit(publishing("after"))
    assert "/sax/test/after" in ledger.state.models
    assert (await open_ledger(store)).state == ledger.state


async def test_a_change_that_waits_behind_others_says_nothing_of_the_store(store):
    ledger = await Ledger.open(store, CELL, snapshot_every=100, patience_s=0.2)
    async with ledger._turn():
        with pytest.raises(AdminUnavailable, match="nothing was written"):
            await ledger.commit(publishing("m"))
    assert not ledger.store_health.failing


async def test_the_health_of_the_store_follows_the_last_write(store):
    ledger = await open_ledger(store)
    store.fails = "before"
    for _ in range(2):
        with pytest.raises(AdminUnavailable):
            await ledger.commit(publishing("m"))
    assert (ledger.store_health.failing, ledger.store_health.failures) == (True, 2)
    store.fails = ""
    await ledger.commit(publishing("m"))
    assert not ledger.store_health.failing


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("asked", ["there is one", "there is none", "nothing to change"])
async def test_a_deposed_leader_refuses_nothing_from_its_old_state(store, asked, compacted):
    """Cut off for a while it does not know of the other one; what it would say is not true now."""
    first = await open_ledger(store)
    await first.commit(publishing("m"))
    second = await open_ledger(store, every=1 if compacted else 100)
    await second.commit(lambda state: unpublish_record(state, "/sax/test/m", at_s=0))
    await second.commit(publishing("n"))
    await second.close()
    change = {
        "there is one": publishing("m"),
        "there is none": lambda state: unpublish_record(state, "/sax/test/n", at_s=0),
        "nothing to change": lambda state: None,
    }[asked]
    with pytest.raises(NotLeading):
        await first.commit(change)
    assert first.deposed.is_set()


async def test_a_change_that_may_have_counted_is_not_called_undone(store):
    """It lands, another one takes the lead and compacts it away, and then its answer comes."""
    first = await open_ledger(store)
    store.gate.clear()
    create = store.store.create

    async def create_and_take_over(name: str, data: bytes) -> None:
        store.store.create = create
        await create(name, data)
        second = await open_ledger(store, every=1)
        await second.commit(publishing("n"))
        await second.close()

    store.store.create = create_and_take_over
    store.gate.set()
    with pytest.raises(AdminUnavailable, match="could not be confirmed") as caught:
        await first.commit(publishing("m"))
    assert not isinstance(caught.value, NotLeading)
    assert first.deposed.is_set()
    assert set((await open_ledger(store)).state.models) == {"/sax/test/m", "/sax/test/n"}


async def test_of_two_that_found_the_lead_vacant_one_gets_it():
    """The second must not read the first's record and write its own after it."""
    store = open_store("memory://")
    first = await Ledger.open(store, CELL, snapshot_every=100)
    second = await Ledger.open(store, CELL, snapshot_every=100)
    assert await first.take_lead("a", "10.0.0.1:1", 0.0) == 1
    with pytest.raises(NotLeading):
        await second.take_lead("b", "10.0.0.2:1", 0.0)
