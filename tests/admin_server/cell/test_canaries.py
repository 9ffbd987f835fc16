"""Canaries through the client, with a real admin server and model servers that load at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest
import pytest_asyncio

from admin_server.cell.canaries import abort_record, canary_record, promote_record
from admin_server.ledger.records import decode_record, encode_record, kind_of, version_of
from admin_server.ledger.state import (
    CellState,
    apply,
    decode_state,
    encode_state,
    publish_record,
    rollback_record,
    update_record,
)
from admin_server.process import Running
from sax.client import AsyncClient
from sax.client.watch import follow
from sax.errors import InvalidRequest, ModelNotFound, StaleRevision
from sax.types import Autoscaling, Canary, CanaryShare, ModelSpec
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


A, B, C = "a" * 32, "b" * 32, "c" * 32
SPEC = ModelSpec(model_id=M, model_path="llama", checkpoint="/one", replicas=4)


def published_of_canaries(**changes) -> CellState:
    state = CellState("/sax/test")
    record = publish_record(state, replace(SPEC, **changes), version=A, at_s=0)
    return apply(state, record, 1)


def started(state: CellState | None = None, **changes) -> CellState:
    state = state or published_of_canaries()
    record = canary(state, **changes)
    assert record is not None
    return apply(state, record, 2)


def canary(state: CellState, checkpoint="/two", overrides=None, percent=10.0, **more):
    more = {"version": B, "at_s": 1, **more}
    return canary_record(state, M, checkpoint, overrides or {}, percent, **more)


def test_a_canary_is_beside_the_version_of_the_model():
    spec = started().models[M]
    assert (spec.checkpoint, spec.version, spec.revision) == ("/one", A, 2)
    assert spec.canary == Canary(version=B, checkpoint="/two", percent=10)


def test_its_record_says_what_it_is_and_where():
    record = canary(published_of_canaries())
    assert (kind_of(record), record.note) == ("canary", "canary of /two at 10 %, on 1 replica of 4")
    lone = canary(published_of_canaries(replicas=1))
    assert lone.note.endswith("on a second replica: it needs one more server")
    scaled = canary(published_of_canaries(autoscaling=Autoscaling(max_replicas=9)))
    assert scaled.note == "canary of /two at 10 %"


def test_a_promoted_canary_is_the_version_and_one_can_roll_back_from_it():
    state = started()
    record = promote_record(state, M, at_s=2)
    assert (kind_of(record), version_of(record)) == ("promote", B)
    state = apply(state, record, 3)
    spec = state.models[M]
    assert (spec.checkpoint, spec.version, spec.canary, spec.revision) == ("/two", B, None, 3)
    assert spec.promoted == 10
    back = rollback_record(state, M, "", at_s=3)
    assert back is not None
    assert back.version == A
    assert apply(state, back, 4).models[M].promoted == 0
    scaled = update_record(state, replace(spec, replicas=7, promoted=0.0), version=C, at_s=3)
    assert scaled.spec.promoted == 10
    newer = update_record(state, replace(spec, checkpoint="/three"), version=C, at_s=3)
    assert newer.spec.promoted == 0


def test_an_aborted_canary_leaves_only_its_name():
    state = started()
    record = abort_record(state, M, at_s=2)
    assert kind_of(record) == "abort"
    after = apply(state, record, 3)
    assert after.models[M] == replace(published_of_canaries().models[M], revision=3, aborted=B)
    assert after.versions == published_of_canaries().versions


def test_the_name_of_an_aborted_canary_survives_an_update():
    state = started()
    state = apply(state, abort_record(state, M, at_s=2), 3)
    new = replace(state.models[M], replicas=7, aborted="")
    assert update_record(state, new, version=C, at_s=3).spec.aborted == B


def test_the_same_canary_again_only_changes_its_share():
    state = started()
    assert canary(state, version=C) is None
    grown = canary(state, percent=50.0, version=C).spec.canary
    assert grown == Canary(version=B, checkpoint="/two", percent=50)


def test_a_canary_of_a_canary_is_refused_with_what_to_do_first():
    with pytest.raises(InvalidRequest, match=f"sax promote {M}` or `sax abort {M}"):
        canary(started(), checkpoint="/three")


@pytest.mark.parametrize(
    "change", [{"checkpoint": "/three"}, {"overrides": {"A": "1"}}, {"checkpoint": "/two"}]
)
def test_what_is_loaded_does_not_change_beside_a_canary(change):
    state = started()
    with pytest.raises(InvalidRequest, match="before an update of what is loaded"):
        update_record(state, replace(state.models[M], **change), version=C, at_s=2)


def test_the_rest_does_and_old_clients_keep_a_canary_they_do_not_know():
    state = started()
    for revision in (0, 2):
        new = replace(state.models[M], replicas=7, canary=None, revision=revision)
        record = update_record(state, new, version=C, at_s=2)
        assert record.spec.canary == state.models[M].canary
        assert record.spec.replicas == 7


def test_a_rollback_waits_for_the_end_of_a_canary():
    state = published_of_canaries()
    record = update_record(state, replace(SPEC, checkpoint="/zero"), version=C, at_s=1)
    state = started(apply(state, record, 2))
    with pytest.raises(InvalidRequest, match="before a rollback"):
        rollback_record(state, M, "", at_s=2)


@each_case(
    "change, param",
    [
        ({"checkpoint": "/one"}, "canary"),
        ({"checkpoint": ""}, "canary"),
        ({"percent": 0.0}, "canary"),
        ({"percent": 100.0}, "canary"),
        ({"percent": float("nan")}, "canary"),
        ({"overrides": {"A": "no json"}}, "overrides"),
        ({"checkpoint": "x" * 5000}, "checkpoint"),
    ],
)
def test_nonsense_is_refused_by_its_field(change, param):
    with pytest.raises(InvalidRequest) as refused:
        canary(published_of_canaries(), **change)
    assert refused.value.param == param


def test_what_is_not_there_is_refused():
    for end in (promote_record, abort_record):
        with pytest.raises(InvalidRequest, match="--canary 10%"):
            end(published_of_canaries(), M, at_s=1)
        with pytest.raises(ModelNotFound):
            end(published_of_canaries(), "/sax/test/other", at_s=1)
    with pytest.raises(StaleRevision):
        canary(published_of_canaries(), revision=7)
    with pytest.raises(InvalidRequest, match="publish it first"):
        publish_record(
            CellState("/sax/test"),
            replace(SPEC, canary=Canary(version=B, checkpoint="/two", percent=1)),
            version=A,
            at_s=0,
        )


def test_records_and_states_with_canaries_are_read_again():
    state = started()
    record = canary(published_of_canaries())
    assert decode_record(encode_record(record)) == record
    assert decode_state(encode_state(state)) == state


def test_an_admin_server_from_before_canaries_reads_the_record_and_knows_the_model():
    fields = msgspec.json.decode(encode_record(canary(published_of_canaries())))
    assert fields["type"] == "update"
    assert fields["spec"]["checkpoint"] == "/one"


def test_a_log_from_before_canaries_has_none():
    fields = msgspec.json.decode(encode_record(canary(published_of_canaries())))
    del fields["spec"]["canary"], fields["action"]
    record = decode_record(msgspec.json.encode(fields))
    assert record.spec.canary is None
    assert kind_of(record) == "update"
