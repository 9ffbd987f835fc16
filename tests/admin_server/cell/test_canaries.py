"""Canaries through the client, with a real admin server and model servers that load at once."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from admin_server.process import Running
from sax.client import AsyncClient
from sax.client.watch import follow
from sax.errors import InvalidRequest
from sax.types import CanaryShare
from tests.admin_server.conftest import eventually
from tests.each_case import each_case

M = "/sax/test/m"


@pytest.fixture
async def client(admin: Running):
    async with AsyncClient(f"127.0.0.1:{admin.port}") as client:
        yield client


class Followed:
    """The newest of what a client is told of a model."""

    def __init__(self, client: AsyncClient) -> None:
        self.share: CanaryShare | None = None
        self.ready: frozenset[str] = frozenset()
        self._task = asyncio.create_task(self._follow(client))

    async def _follow(self, client: AsyncClient) -> None:
        async for watched, _ in follow(client._admin, M):
            self.share, self.ready = watched.canary, watched.ready

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.mark.extended
async def test_clients_hear_of_a_canary_of_its_share_and_of_its_end(client, start_modelet):
    modelets = [await start_modelet(data_address=f"10.0.0.{i}:1") for i in range(4)]
    await client.publish(M, "llama", "/one", 4)
    await client.wait_for_ready(M, 4)
    followed = Followed(client)
    await eventually(lambda: len(followed.ready) == 4)
    assert followed.share is None

    await client.update(M, checkpoint="/two", canary=10)
    await eventually(lambda: followed.share is not None)
    canary = (await client.list(M)).spec.canary
    assert followed.share == CanaryShare(canary.version, 10, followed.share.addresses)
    assert len(followed.share.addresses) == 1
    assert followed.share.addresses < followed.ready
    await client.wait_for_ready(M, 4)

    loads = sum(verb == "load" for modelet in modelets for verb, _ in modelet.calls)
    await client.update(M, canary=20)  # still one replica: nothing is loaded, but clients hear
    await eventually(lambda: followed.share.percent == 20)
    assert sum(verb == "load" for modelet in modelets for verb, _ in modelet.calls) == loads

    version = await client.promote(M)
    assert version == canary.version
    await eventually(lambda: followed.share is None and len(followed.ready) == 4)
    await client.wait_for_ready(M, 4)
    held = {modelet.models[M].version for modelet in modelets}
    assert held == {version}
    await followed.close()


@pytest.mark.extended
async def test_an_aborted_canary_is_nobodys_choice_while_its_replicas_are_there(
    client, start_modelet
):
    modelets = [await start_modelet() for _ in range(4)]
    await client.publish(M, "llama", "/one", 4)
    await client.wait_for_ready(M, 4)
    await client.update(M, checkpoint="/two", canary=75)
    await client.wait_for_ready(M, 4)
    followed = Followed(client)
    await eventually(lambda: followed.share is not None and len(followed.share.addresses) == 3)
    for modelet in modelets:
        modelet.may_load.clear()  # the first to go back is not back soon
    await client.abort(M)
    await eventually(lambda: followed.share.percent == 0 and len(followed.ready) == 3)
    assert len(followed.share.addresses) == 2
    for modelet in modelets:
        modelet.may_load.set()
    await eventually(lambda: followed.share is None and len(followed.ready) == 4)
    await followed.close()


@pytest.mark.extended
async def test_sessions_stay_with_a_promoted_canary_while_the_others_follow(client, start_modelet):
    modelets = [await start_modelet() for _ in range(4)]
    await client.publish(M, "llama", "/one", 4)
    await client.wait_for_ready(M, 4)
    await client.update(M, checkpoint="/two", canary=30)
    await client.wait_for_ready(M, 4)
    followed = Followed(client)
    await eventually(lambda: followed.share is not None)
    version = followed.share.version
    for modelet in modelets:
        modelet.may_load.clear()
    await client.promote(M)
    # One of three ready has it, and no session that had it goes back.
    await eventually(lambda: len(followed.ready) == 3)
    assert followed.share == CanaryShare(version, 100 / 3, followed.share.addresses)
    assert len(followed.share.addresses) == 1
    for modelet in modelets:
        modelet.may_load.set()
    await eventually(lambda: followed.share is None and len(followed.ready) == 4)
    await followed.close()


async def test_an_aborted_canary_goes_back_and_the_log_tells_all(client, start_modelet):
    modelets = [await start_modelet() for _ in range(2)]
    await client.publish(M, "llama", "/one", 2)
    await client.wait_for_ready(M, 2)
    before = (await client.list(M)).spec.version
    await client.update(M, overrides={"A": "1"}, canary=50)
    await client.wait_for_ready(M, 2)
    assert sum(modelet.models[M].version == before for modelet in modelets) == 1
    listed = await client.list(M)
    assert (listed.ready_canaries, listed.wanted_replicas) == (1, 2)
    assert await client.abort(M) == before
    await client.wait_for_ready(M, 2)
    assert all(modelet.models[M].version == before for modelet in modelets)
    kinds = [event.kind for event in await client.events(M)]
    assert kinds == ["abort", "canary", "publish"]
    assert [version.version for version in await client.versions(M)] == [before]


async def test_a_lone_replica_gets_a_second_one_and_without_a_server_the_reason_says_so(
    client, start_modelet
):
    await start_modelet()
    await client.publish(M, "llama", "/one", 1)
    await client.wait_for_ready(M, 1)
    await client.update(M, checkpoint="/two", canary=5)
    listed = await client.list(M)
    while len(listed.replicas) < 2:
        await asyncio.sleep(0.02)
        listed = await client.list(M)
    assert (listed.ready_replicas, listed.wanted_replicas) == (1, 2)
    assert "only 1 joined server serves llama" in listed.replicas[1].reason
    await start_modelet()
    await client.wait_for_ready(M, 2)
    assert (await client.list(M)).ready_canaries == 1


@pytest_asyncio.fixture
async def published(client):
    """The client of a cell with a model."""
    await client.publish(M, "llama", "/one", 2)
    return client


@each_case(
    "changes, says",
    [
        ({"checkpoint": "/two", "canary": 100}, "less than 100"),
        ({"checkpoint": "/two", "canary": 10, "replicas": 3}, "an update of its own"),
        ({"canary": 10}, "another checkpoint or other overrides"),
        ({"checkpoint": "/one", "canary": 10}, "another checkpoint or other overrides"),
    ],
)
async def test_nonsense_is_refused_with_what_to_do(changes, says, published):
    with pytest.raises(InvalidRequest, match=says):
        await published.update(M, **changes)
