"""What operators do at the same time, with the real client against the real admin server."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from admin_server.process import running
from sax.client import AsyncClient
from sax.errors import InvalidRequest, StaleRevision
from tests.admin_server.api.test_server import M
from tests.admin_server.conftest import FAST
from tests.admin_server.fake_modelet import FakeModelet


@pytest.fixture
async def client(admin):
    async with AsyncClient(f"127.0.0.1:{admin.port}") as client:
        yield client


@pytest.mark.extended
async def test_clients_that_change_different_fields_at_once_all_win(admin, client):
    await client.publish(M, "llama", "/one")
    async with AsyncClient(f"127.0.0.1:{admin.port}") as other:
        for turn in range(5):
            await asyncio.gather(
                client.update(M, replicas=turn),
                other.update(M, checkpoint=f"/ckpt{turn}"),
                client.update(M, overrides={"PASS_CONTEXT": str(turn)}),
            )
            spec = (await client.list(M)).spec
            assert (spec.replicas, spec.checkpoint) == (turn, f"/ckpt{turn}")
            assert spec.overrides == {"PASS_CONTEXT": str(turn)}


async def test_a_revision_that_the_caller_names_is_not_tried_again(client):
    await client.publish(M, "llama", "/one")
    seen = (await client.list(M)).spec.revision
    await client.update(M, replicas=2, revision=seen)
    with pytest.raises(StaleRevision, match=f"from revision {seen}") as refusal:
        await client.update(M, replicas=3, revision=seen)
    assert refusal.value.param == "revision"
    assert (await client.list(M)).spec.replicas == 2


@pytest.mark.parametrize("revision", [0, -1, 2**63])
async def test_a_revision_that_cannot_be_is_refused_before_it_is_sent(client, revision):
    with pytest.raises(InvalidRequest) as refusal:
        await client.update(M, replicas=3, revision=revision)
    assert refusal.value.param == "revision"


async def test_versions_events_and_a_rollback_by_the_client(client):
    await client.publish(M, "llama", "/one")
    await client.update(M, checkpoint="/two")
    newer, older = await client.versions(M)
    assert (newer.checkpoint, newer.current, older.checkpoint) == ("/two", True, "/one")
    assert await client.rollback(M) == older.version
    assert (await client.list(M)).spec.checkpoint == "/one"
    assert await client.rollback(M, newer.version) == newer.version
    told = await client.events(M, limit=3)
    assert [one.kind for one in told] == ["rollback", "rollback", "update"]
    assert [one.kind for one in await client.events(before=told[-1].sequence)] == [
        "publish",
        "lead",
    ]


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (lambda client: client.rollback(M, "not hex"), "version"),
        (lambda client: client.events(before=-1), "before"),
        (lambda client: client.events(limit=2**31), "limit"),
    ],
)
async def test_what_cannot_be_is_refused_before_it_is_sent(client, call, param):
    with pytest.raises(InvalidRequest) as refusal:
        await call(client)
    assert refusal.value.param == param


async def test_a_watch_goes_on_with_the_next_admin_server(config):
    """What `sax watch` prints: Reset, + address, and all of it again after a restart."""
    modelet = await FakeModelet().start()
    async with running(config, FAST) as first:
        port = first.port
        await modelet.join(port)
        client = AsyncClient(f"127.0.0.1:{port}")
        await client.publish(M, "llama", "/one")
        await client.wait_for_ready(M)
        told = client.watch(M)
        assert [str(await anext(told)) for _ in range(2)] == ["Reset", f"+ {modelet.address}"]
    async with aclosing(told), running(replace(config, port=port), FAST):
        await modelet.join(port)
        lines = [str(await anext(told))]
        while lines[-1] != f"+ {modelet.address}":
            lines.append(str(await anext(told)))
        assert lines[0] == "Reset"
        # An operator goes on where the last admin server stopped.
        assert [one.kind for one in await client.events()] == ["lead", "publish", "lead"]
        await client.update(M, checkpoint="/two")
        assert len(await client.versions(M)) == 2
    await client.close()
    await modelet.stop()
