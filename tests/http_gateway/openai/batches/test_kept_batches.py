from __future__ import annotations

import pytest

from http_gateway.openai.batches.kept_batches import KEPT_S, KeptBatches
from http_gateway.openai.batches.records import (
    BatchBeat,
    BatchChecked,
    BatchDone,
    BatchOrder,
    LogEntry,
)
from sax.errors import NotFound
from sax.storage.object_store import open_store


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def order(kept: KeptBatches, owner: str = "a") -> BatchOrder:
    now = int(kept.clock())
    return BatchOrder(
        id=kept.new_id(),
        owner=owner,
        key="",
        endpoint="/v1/completions",
        input_file_id="file-1",
        completion_window="24h",
        created_at=now,
        expires_at=now + 86400,
    )


async def test_the_status_follows_from_what_is_there():
    kept = KeptBatches(open_store("memory://"), Clock())
    made = order(kept)
    place = (made.owner, made.id)

    async def status() -> str:
        return (await kept.view(*place)).status

    await kept.create(made)
    assert await kept.open() == [place]
    assert await status() == "validating"
    await kept.check_in(place, BatchChecked(7, 1001))
    assert await status() == "in_progress"
    assert await kept.claim(place, 1, "runner")
    await kept.beat(place, 1, BatchBeat(count=1, completed=3, failed=1))
    counts = (await kept.view(*place)).body()["request_counts"]
    assert counts == {"total": 7, "completed": 3, "failed": 1}
    await kept.append(place, 0, LogEntry(writer="runner", ending="completed", at=1002))
    assert await status() == "finalizing"
    await kept.cancel(place)
    assert await status() == "cancelling"
    await kept.finish(place, BatchDone(status="completed", at=1003, finalizing_at=1002))
    assert await status() == "completed"
    assert await kept.open() == []
    body = (await kept.view(*place)).body()
    assert (body["finalizing_at"], body["completed_at"], body["cancelled_at"]) == (1002, 1003, None)


async def test_what_was_noted_first_stands():
    kept = KeptBatches(open_store("memory://"))
    made = order(kept)
    place = (made.owner, made.id)
    await kept.create(made)
    assert await kept.check_in(place, BatchChecked(7, 1)) == BatchChecked(7, 1)
    assert await kept.check_in(place, BatchChecked(7, 2)) == BatchChecked(7, 1)
    await kept.finish(place, BatchDone(status="completed", at=1))
    await kept.finish(place, BatchDone(status="expired", at=2))
    assert (await kept.view(*place)).status == "completed"


async def test_a_claim_is_one_gateways():
    kept = KeptBatches(open_store("memory://"))
    place = ("a", "batch_1")
    assert await kept.newest_claim(place) == (0, None)
    assert await kept.claim(place, 1, "one")
    assert await kept.claim(place, 1, "one")
    assert not await kept.claim(place, 1, "two")
    assert await kept.claim(place, 2, "two")
    beat = BatchBeat(count=1, completed=0, failed=0)
    await kept.beat(place, 2, beat)
    assert await kept.newest_claim(place) == (2, beat)


async def test_owners_see_their_own_batches_only():
    clock = Clock()
    kept = KeptBatches(open_store("memory://"), clock)
    made = []
    for owner in ("a", "b", "a"):
        made.append(order(kept, owner))
        await kept.create(made[-1])
        clock.now_s += 1
    assert await kept.ids("a") == [made[0].id, made[2].id]
    with pytest.raises(NotFound):
        await kept.view("a", made[1].id)
    assert len(await kept.open()) == 3


async def test_batches_that_ended_long_ago_are_swept():
    store, clock = open_store("memory://"), Clock()
    kept = KeptBatches(store, clock)
    old, running = order(kept), order(kept)
    for each in (old, running):
        await kept.create(each)
    await kept.finish((old.owner, old.id), BatchDone(status="completed", at=1))
    await kept.sweep()
    assert len(await kept.ids("a")) == 2
    clock.now_s += KEPT_S
    await kept.sweep()
    assert await kept.ids("a") == [running.id]
    assert not [name for name in await store.names("batches") if old.id in name]
