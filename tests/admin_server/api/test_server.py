"""The Admin service over a real port, as a client generated from Saxml's protos sees it."""

import asyncio

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from admin_server.api.server import REQUEST_BYTES, unknown_fields
from admin_server.process import running
from sax import errors
from sax.errors import (
    Cancelled,
    InvalidName,
    InvalidRequest,
    ModelExists,
    ModelNotFound,
    ModelPathNotFound,
    NotFound,
    SaxError,
    UnsupportedParameter,
)
from sax.proto import admin_pb2, cell_pb2, common_pb2
from sax.types import ServableStatus
from sax.wire.models import decode_published
from sax.wire.rpc import ERROR_KEY, open_channel, to_sax_error
from sax.wire.servers import decode_joined
from tests.admin_server.conftest import FAST, eventually
from tests.admin_server.fake_modelet import FakeModelet
from tests.each_case import each_case

M = "/sax/test/m"


def model(name: str = "m", **changes) -> admin_pb2.Model:
    settings = {"model_path": "llama", "checkpoint_path": "/one", "requested_num_replicas": 1}
    return admin_pb2.Model(model_id=f"/sax/test/{name}", **{**settings, **changes})


async def publish(stub, *args, **changes) -> None:
    await stub.Publish(admin_pb2.PublishRequest(model=model(*args, **changes)))


async def error_of(call) -> SaxError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return to_sax_error(failure.value, "admin")


async def watch(stub, known_id: str = "", seqno: int = 0, timeout_s: float = 60):
    request = admin_pb2.WatchLocRequest(model_id=M, admin_server_id=known_id, seqno=seqno)
    return await stub.WatchLoc(request, timeout=timeout_s)


async def no_news(stub, known_id: str, seqno: int) -> None:
    """A watch that ends without news, before the deadline of its client.

    What is left of a short deadline may be over before a busy machine has carried the answer: then
    a longer one is given.
    """
    timeout_s, reply = 0.2, None
    while reply is None:
        try:
            reply = await watch(stub, known_id, seqno, timeout_s)
        except grpc.aio.AioRpcError as late:
            if late.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            timeout_s *= 2
    assert reply.result == admin_pb2.WatchResult(next_seqno=seqno)


async def test_a_published_model_is_listed_with_the_reason_why_it_is_not_ready(stub):
    await publish(stub, overrides={"PASS_CONTEXT": "2"})
    reply = await stub.List(admin_pb2.ListRequest(model_id=M))
    (listed,) = map(decode_published, reply.published_models)
    assert (listed.spec.model_path, dict(listed.spec.overrides)) == ("llama", {"PASS_CONTEXT": "2"})
    assert listed.ready_replicas == 0
    assert listed.replicas[0].reason


@pytest.mark.parametrize("name", ["", "/sax/test"])
async def test_a_cell_is_listed_with_its_models_and_servers(stub, start_modelet, name):
    modelet = await start_modelet()
    await publish(stub)
    await stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1))
    reply = await stub.List(admin_pb2.ListRequest(model_id=name))
    assert [one.model.model_id for one in reply.published_models] == [M]
    assert list(reply.published_models[0].modelet_addresses) == [modelet.address]
    (server,) = map(decode_joined, reply.servers)
    assert (server.info.address, server.memory_used) == (modelet.address, 1000)
    assert server.servables[0].status is ServableStatus.LOADED


@each_case(
    "changes, error, param",
    [
        ({"model_path": "no path"}, InvalidName, "model_path"),
        ({"checkpoint_path": ""}, InvalidName, "checkpoint"),
        ({"requested_num_replicas": -1}, InvalidRequest, "replicas"),
        ({"overrides": {"DTYPE": "b"}}, InvalidRequest, "overrides"),
        ({"admin_acl": "acl/all"}, UnsupportedParameter, "admin_acl"),
        (
            {"acls": common_pb2.AccessControlLists(items={"lm.score": "acl/x"})},
            UnsupportedParameter,
            "acls",
        ),
    ],
)
async def test_a_bad_publish_is_refused_by_field_and_changes_nothing(changes, error, param, stub):
    refusal = await error_of(publish(stub, **changes))
    assert (type(refusal), refusal.param) == (error, param)
    assert not (await stub.List(admin_pb2.ListRequest())).published_models


async def test_a_second_publish_of_a_name_is_refused(stub):
    await publish(stub)
    assert type(await error_of(publish(stub))) is ModelExists


@pytest_asyncio.fixture
async def published(stub):
    """The stub of a cell with a model."""
    await publish(stub)
    return stub


@each_case(
    "request_of",
    [
        lambda stub: stub.List(admin_pb2.ListRequest(model_id="/sax/test/mm")),
        lambda stub: stub.Unpublish(admin_pb2.UnpublishRequest(model_id="/sax/test/mm")),
        lambda stub: stub.Update(admin_pb2.UpdateRequest(model=model("mm"))),
        lambda stub: stub.Stats(admin_pb2.StatsRequest(model_id="/sax/test/mm")),
        lambda stub: stub.WatchLoc(admin_pb2.WatchLocRequest(model_id="/sax/test/mm")),
        lambda stub: stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id="/sax/test/mm")),
    ],
)
async def test_an_unknown_model_is_not_found_and_the_nearest_is_named(request_of, published):
    error = await error_of(request_of(published))
    assert type(error) is ModelNotFound
    assert "near names: /sax/test/m" in error.text


async def test_another_cell_is_not_found(stub):
    error = await error_of(stub.List(admin_pb2.ListRequest(model_id="/sax/other")))
    assert type(error) is NotFound


async def test_a_path_that_no_joined_server_serves_is_refused_with_the_nearest(stub, start_modelet):
    await start_modelet(paths=("gemma.Gemma2B", "llama"))
    error = await error_of(publish(stub, model_path="gemma.Gemma3B"))
    assert type(error) is ModelPathNotFound
    assert "near paths: gemma.Gemma2B" in error.text


async def test_wait_for_ready_ends_when_the_replica_is_ready(stub, start_modelet):
    await publish(stub)
    waiting = asyncio.ensure_future(
        stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1))
    )
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await start_modelet()
    await waiting


@pytest.mark.extended
async def test_wait_for_ready_after_an_update_waits_for_what_was_updated(stub, start_modelet):
    modelet = await start_modelet()
    await publish(stub)
    request = admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1)
    await stub.WaitForReady(request)
    before = modelet.models[M].version
    await stub.Update(admin_pb2.UpdateRequest(model=model(checkpoint_path="/two")))
    await stub.WaitForReady(request)
    assert modelet.models[M].version != before


async def test_wait_for_ready_ends_with_an_unpublish(admin, stub):
    await publish(stub)
    waiting = asyncio.ensure_future(
        stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1))
    )
    await eventually(lambda: M in admin.cell._notice._events)  # it came and waits
    await stub.Unpublish(admin_pb2.UnpublishRequest(model_id=M))
    assert type(await error_of(waiting)) is Cancelled


async def test_wait_for_ready_keeps_to_the_deadline_of_its_client(stub):
    await publish(stub)
    request = admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.WaitForReady(request, timeout=0.2)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_watch_follows_the_ready_replicas(stub, start_modelet):
    await publish(stub)
    first = await watch(stub)
    assert (first.result.has_fullset, list(first.result.values)) == (True, [])
    modelet = await start_modelet()
    second = await watch(stub, first.admin_server_id, first.result.next_seqno)
    assert not second.result.has_fullset
    assert [change.addition for change in second.result.changelog] == [modelet.address]
    await stub.Update(
        admin_pb2.UpdateRequest(model=model(requested_num_replicas=0, checkpoint_path=""))
    )
    third = await watch(stub, second.admin_server_id, second.result.next_seqno)
    assert [change.deletion for change in third.result.changelog] == [modelet.address]


async def test_a_model_that_is_loading_is_not_watched_as_ready(stub, start_modelet):
    modelet = await start_modelet()
    modelet.may_load.clear()
    await publish(stub)
    await eventually(lambda: modelet.models)
    first = await watch(stub)
    assert list(first.result.values) == []
    await no_news(stub, first.admin_server_id, first.result.next_seqno)
    modelet.may_load.set()
    third = await watch(stub, first.admin_server_id, first.result.next_seqno)
    assert [change.addition for change in third.result.changelog] == [modelet.address]


async def test_a_watch_tells_the_data_address_where_there_is_one(stub, start_modelet):
    await start_modelet(data_address="127.0.0.1:4444")
    await publish(stub)
    await stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1))
    assert list((await watch(stub)).result.values) == ["127.0.0.1:4444"]


async def test_a_client_of_another_admin_server_gets_the_full_set(stub):
    await publish(stub)
    reply = await watch(stub, "another", 0)
    assert reply.result.has_fullset
    assert reply.admin_server_id not in ("", "another")


@pytest.mark.extended
async def test_numbers_mean_what_they_mean_in_saxml(stub, start_modelet):
    """0, a number of another admin server and one that is too old lead to the whole set, by its
    values or by all changes."""
    modelet = await start_modelet()
    await publish(stub)
    await stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1))
    me = (await watch(stub)).admin_server_id
    for admin_server_id, seqno in ((me, 0), ("", 7), ("another", 1), (me, 2**31 - 1)):
        result = (await watch(stub, admin_server_id, seqno)).result
        told = {*result.values, *(change.addition for change in result.changelog)}
        assert told == {modelet.address}
        await no_news(stub, me, result.next_seqno)
    for admin_server_id in (me, "another"):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await watch(stub, admin_server_id, -1)
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("count", [0, -1])
async def test_nobody_waits_for_no_replicas(stub, count):
    await publish(stub)
    await stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=count))


async def test_a_watch_ends_with_an_unpublish_and_numbers_are_not_used_again(
    admin, stub, start_modelet
):
    await start_modelet()
    await publish(stub)
    await stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1))
    first = await watch(stub)
    waiting = asyncio.ensure_future(watch(stub, first.admin_server_id, first.result.next_seqno))
    await eventually(lambda: M in admin.cell._notice._events)  # it came and waits
    await stub.Unpublish(admin_pb2.UnpublishRequest(model_id=M))
    assert type(await error_of(waiting)) is ModelNotFound
    await publish(stub)
    again = await watch(stub, first.admin_server_id, first.result.next_seqno)
    assert again.result.has_fullset


async def test_a_ready_model_is_listed_with_what_its_server_says_it_serves(stub, start_modelet):
    await start_modelet(paths=("llama",))
    await publish(stub)
    await stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1))
    (listed,) = (await stub.List(admin_pb2.ListRequest(model_id=M))).published_models
    assert list(listed.model.method_names) == ["lm.generate", "lm.score"]


async def test_stats_count_servers_by_type_and_path(stub, start_modelet):
    await start_modelet(paths=("llama", "gemma"))
    await start_modelet(paths=("llama",))
    await publish(stub)
    await stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1))
    everyone = await stub.Stats(admin_pb2.StatsRequest())
    assert dict(everyone.num_servers_by_servable_model_path) == {"llama": 2, "gemma": 1}
    (kind,) = everyone.model_server_type_stats
    assert (kind.chip_type, kind.num_replicas) == (admin_pb2.ModelServer.CHIP_TYPE_CPU, 2)
    of_cell = await stub.Stats(admin_pb2.StatsRequest(model_id="/sax/test"))
    assert of_cell == everyone
    of_one = await stub.Stats(admin_pb2.StatsRequest(model_id=M))
    assert [kind.num_replicas for kind in of_one.model_server_type_stats] == [1]


async def test_a_join_from_nowhere_is_refused(stub):
    error = await error_of(stub.Join(admin_pb2.JoinRequest(address="nowhere")))
    assert (type(error), error.param) == (InvalidRequest, "address")


async def test_health_and_reflection_answer(admin):
    async with open_channel(f"127.0.0.1:{admin.port}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        reply = await check(health_pb2.HealthCheckRequest(service="sax.Admin"))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in ask(iter([request])):
            services = {one.name for one in answer.list_services_response.service}
    assert {"sax.Admin", "sax.Cell"} <= services


CALLS = {
    "Admin/Publish": admin_pb2.PublishRequest,
    "Admin/Update": admin_pb2.UpdateRequest,
    "Admin/Unpublish": admin_pb2.UnpublishRequest,
    "Admin/List": admin_pb2.ListRequest,
    "Admin/Stats": admin_pb2.StatsRequest,
    "Admin/WatchLoc": admin_pb2.WatchLocRequest,
    "Admin/WaitForReady": admin_pb2.WaitForReadyRequest,
    "Admin/Join": admin_pb2.JoinRequest,
    "Cell/Rollback": cell_pb2.RollbackRequest,
    "Cell/Versions": cell_pb2.VersionsRequest,
    "Cell/Events": cell_pb2.EventsRequest,
}
STRANGE = bytes([0x98, 0x3F, 1])  # field 1011, a varint


@pytest.fixture
async def raw(admin):
    """Sends bytes as they are."""
    async with open_channel(f"127.0.0.1:{admin.port}") as channel:

        def send(path: str, data: bytes, timeout_s: float = 20):
            return channel.unary_unary(f"/sax.{path}")(data, timeout=timeout_s)

        yield send


async def refusal_of(call) -> SaxError:
    error = await error_of(call)
    assert type(error) is InvalidRequest
    return error


@each_case("path", [path for path in CALLS if path != "Admin/Join"])
async def test_a_field_that_nobody_knows_is_refused_by_its_number(path, raw):
    error = await refusal_of(raw(path, STRANGE))
    assert error.param == "1011"
    assert CALLS[path].__name__ in error.text
    assert "newer client" in error.text


async def test_a_field_within_a_field_is_refused_by_its_path(raw):
    inner = model().SerializeToString() + STRANGE
    request = admin_pb2.PublishRequest.FromString(b"\x12" + bytes([len(inner)]) + inner)
    assert list(unknown_fields(request)) == ["model.1011"]
    error = await refusal_of(raw("Admin/Publish", request.SerializeToString()))
    assert error.param == "model.1011"


def test_unknown_fields_are_found_in_lists_and_map_values():
    reply = admin_pb2.ListResponse.FromString(b"\x0a\x05\x0a\x03" + STRANGE)
    assert list(unknown_fields(reply)) == ["published_models.model.1011"]
    known = admin_pb2.UpdateRequest(model=model(overrides={"A": "1"}))
    assert list(unknown_fields(known)) == []


async def test_a_field_of_the_wrong_type_is_refused(raw):
    error = await refusal_of(raw("Admin/Unpublish", b"\x08\x05"))  # model_id as a number
    assert error.param == "1"


async def test_a_newer_model_server_may_say_more_than_is_asked(raw, admin):
    there = await FakeModelet().start()
    joining = admin_pb2.JoinRequest(address=there.address).SerializeToString()
    await raw("Admin/Join", joining + STRANGE)
    assert [info.address for info in admin.cell.reconciler.infos()] == [there.address]
    await there.stop()


@each_case("path", CALLS)
async def test_bytes_that_are_no_message_are_refused_in_words(path, raw):
    error = await refusal_of(raw(path, b"\xff\xff\xff"))
    assert error.param == "request"
    assert path in error.text


async def test_text_that_is_no_utf8_is_refused(raw):
    assert (await refusal_of(raw("Admin/List", b"\x0a\x02\xff\xfe"))).param == "request"


async def test_a_request_that_is_too_large_is_refused_in_words(raw):
    big = admin_pb2.ListRequest(model_id="x" * REQUEST_BYTES).SerializeToString()
    error = await refusal_of(raw("Admin/List", big))
    assert (error.param, f"at most {REQUEST_BYTES}" in error.text) == ("request", True)


async def test_a_request_that_grpc_does_not_take_is_an_invalid_request_too(raw):
    huge = admin_pb2.ListRequest(model_id="x" * (17 * 2**20)).SerializeToString()
    error = await refusal_of(raw("Admin/List", huge))
    assert "larger than max" in error.text


# Arbitrary requests

texts = st.sampled_from(["", M, "/sax/test", "/sax/other/m", "llama", "None", "/one"]) | st.text(
    max_size=20
)
ints = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)]) | st.integers(-5, 5)
floats = st.floats()
maps = st.dictionaries(texts, texts | st.sampled_from(["1", '"x"', "[" * 5000]), max_size=3)
models = st.builds(
    admin_pb2.Model,
    model_id=texts,
    model_path=texts,
    checkpoint_path=texts,
    requested_num_replicas=ints,
    overrides=maps,
    uuid=st.binary(max_size=20),
    revision=ints,
    placement=st.none()
    | st.builds(
        admin_pb2.Placement, tags=st.lists(texts, max_size=3), devices=ints, memory_bytes=ints
    ),
    autoscaling=st.none()
    | st.builds(admin_pb2.Autoscaling, min_replicas=ints, max_replicas=ints, target_queue=floats),
)
messages = {
    "Admin/Publish": st.builds(admin_pb2.PublishRequest, model=models),
    "Admin/Update": st.builds(admin_pb2.UpdateRequest, model=models),
    "Admin/Unpublish": st.builds(admin_pb2.UnpublishRequest, model_id=texts),
    "Admin/List": st.builds(admin_pb2.ListRequest, model_id=texts),
    "Admin/Stats": st.builds(admin_pb2.StatsRequest, model_id=texts),
    "Admin/Join": st.builds(admin_pb2.JoinRequest, address=texts, devices=ints),
    "Cell/Rollback": st.builds(
        cell_pb2.RollbackRequest, model_id=texts, uuid=st.binary(max_size=20)
    ),
    "Cell/Versions": st.builds(cell_pb2.VersionsRequest, model_id=texts),
    "Cell/Events": st.builds(cell_pb2.EventsRequest, model_id=texts, before=ints, limit=ints),
}
requests = st.sampled_from(sorted(messages)).flatmap(
    lambda path: st.tuples(
        st.just(path), messages[path].map(lambda m: m.SerializeToString()) | st.binary(max_size=60)
    )
)


@pytest.mark.extended
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sent=st.lists(requests, min_size=1, max_size=5))
def test_no_garbage_harms_the_cell_or_changes_it_unacknowledged(garbage_cell, sent):
    garbage_cell(sent)


@pytest.fixture
def garbage_cell(config):
    """One admin for all examples, on a loop of this test's own."""
    loop = asyncio.new_event_loop()
    started = running(config, FAST)
    admin = loop.run_until_complete(started.__aenter__())
    channel = loop.run_until_complete(_open(admin.port))

    async def send(sent) -> None:
        for path, data in sent:
            before = admin.cell.ledger.state, admin.cell.ledger.sequence
            error = await _failure(channel.unary_unary(f"/sax.{path}")(data, timeout=60))
            if error is not None:
                assert ERROR_KEY in dict(error.trailing_metadata() or ()), (path, data, error)
                assert type(to_sax_error(error, "admin")) is not errors.Internal, (path, data)
                assert (admin.cell.ledger.state, admin.cell.ledger.sequence) == before
            assert not admin.life.done()
        health = channel.unary_unary("/sax.Admin/List")
        await health(b"", timeout=60)

    yield lambda sent: loop.run_until_complete(send(sent))
    loop.run_until_complete(channel.close())
    loop.run_until_complete(started.__aexit__(None, None, None))
    loop.close()


async def _failure(call) -> grpc.aio.AioRpcError | None:
    try:
        await call
    except grpc.aio.AioRpcError as exc:
        return exc
    return None


async def _open(port: int) -> grpc.aio.Channel:
    return open_channel(f"127.0.0.1:{port}")
