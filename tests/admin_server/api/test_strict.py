"""Garbage on the wire: every answer is a typed error, and the state is what was acknowledged."""

import asyncio

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from admin_server.api.strict import REQUEST_BYTES, unknown_fields
from admin_server.process import running
from sax import errors
from sax.errors import InvalidRequest, SaxError
from sax.proto import admin_pb2, cell_pb2
from sax.wire.rpc import ERROR_KEY, open_channel, to_sax_error
from tests.admin_server.api.test_server import M, error_of, model
from tests.admin_server.conftest import FAST
from tests.admin_server.fake_modelet import FakeModelet
from tests.each_case import each_case

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
