"""The Cell service over a real port: rollback, versions, the audit log and servers' logs."""

import logging

import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2

from admin_server.api.cell_service import CellService
from admin_server.api.server import AdminService
from sax.auth import acl
from sax.errors import InvalidName, InvalidRequest, ModelNotFound, NotFound, UnsupportedParameter
from sax.flags.last_lines import LastLines, LogLine
from sax.proto import admin_pb2, cell_pb2, cell_pb2_grpc, control_pb2
from sax.wire.records import decode_event, decode_log, decode_version
from sax.wire.rpc import open_channel
from tests.admin_server.api.test_server import M, error_of, model, publish
from tests.admin_server.conftest import eventually
from tests.each_case import each_case


@pytest.fixture
async def cell(admin):
    """The Cell service's stub."""
    async with open_channel(f"127.0.0.1:{admin.port}") as channel:
        yield cell_pb2_grpc.CellStub(channel)


async def update(stub, **changes) -> None:
    await stub.Update(admin_pb2.UpdateRequest(model=model(**changes)))


async def versions_of(cell):
    reply = await cell.Versions(cell_pb2.VersionsRequest(model_id=M))
    return [decode_version(one) for one in reply.versions]


async def events_of(cell, **request):
    reply = await cell.Events(cell_pb2.EventsRequest(**request))
    return [decode_event(one) for one in reply.events]


async def test_versions_are_told_the_newest_first_with_the_current_one_marked(stub, cell):
    await publish(stub)
    await update(stub, checkpoint_path="/two")
    told = await versions_of(cell)
    assert [(one.checkpoint, one.current) for one in told] == [("/two", True), ("/one", False)]
    assert told[0].at_s >= told[1].at_s > 0


async def test_a_rollback_answers_with_the_version_that_is_wanted_now(stub, cell):
    await publish(stub)
    await update(stub, checkpoint_path="/two")
    newer, older = await versions_of(cell)
    reply = await cell.Rollback(cell_pb2.RollbackRequest(model_id=M))
    assert reply.uuid.hex() == older.version
    request = cell_pb2.RollbackRequest(model_id=M, uuid=bytes.fromhex(newer.version))
    assert (await cell.Rollback(request)).uuid.hex() == newer.version
    assert (await cell.Rollback(request)).uuid.hex() == newer.version
    assert [one.kind for one in await events_of(cell)] == [
        "rollback",
        "rollback",
        "update",
        "publish",
        "lead",
    ]


@pytest.mark.extended
async def test_a_server_that_still_holds_the_older_version_is_not_told_to_load_it(
    stub, cell, start_modelet
):
    first = await start_modelet()
    await publish(stub)
    ready = admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=1)
    await stub.WaitForReady(ready)
    older = first.models[M].version
    # The new version loads beside the old one, and does not come to its end.
    second = await start_modelet()
    second.may_load.clear()
    await update(stub, checkpoint_path="/two")
    await eventually(lambda: M in second.models)
    await cell.Rollback(cell_pb2.RollbackRequest(model_id=M))
    await stub.WaitForReady(ready)
    await eventually(lambda: ("unload", M) in second.calls)
    assert first.models[M].version == older
    assert first.calls == [("load", M)]
    second.may_load.set()


@pytest_asyncio.fixture
async def published(stub, cell):
    """The cell, with a model."""
    await publish(stub)
    return cell


@each_case(
    "request_of, error, param",
    [
        (
            lambda cell: cell.Rollback(cell_pb2.RollbackRequest(model_id=M)),
            InvalidRequest,
            "version",
        ),
        (
            lambda cell: cell.Rollback(cell_pb2.RollbackRequest(model_id=M, uuid=b"x")),
            InvalidRequest,
            "version",
        ),
        (
            lambda cell: cell.Rollback(cell_pb2.RollbackRequest(model_id=M, uuid=b"x" * 16)),
            NotFound,
            "version",
        ),
        (
            lambda cell: cell.Rollback(cell_pb2.RollbackRequest(model_id=M + "x")),
            ModelNotFound,
            "model",
        ),
        (
            lambda cell: cell.Versions(cell_pb2.VersionsRequest(model_id=M + "x")),
            ModelNotFound,
            "model",
        ),
        (lambda cell: cell.Versions(cell_pb2.VersionsRequest()), InvalidName, "model"),
        (lambda cell: cell.Events(cell_pb2.EventsRequest(limit=-1)), InvalidRequest, "limit"),
        (lambda cell: cell.Events(cell_pb2.EventsRequest(limit=5000)), InvalidRequest, "limit"),
        (lambda cell: cell.Events(cell_pb2.EventsRequest(before=-1)), InvalidRequest, "before"),
        (lambda cell: cell.Events(cell_pb2.EventsRequest(model_id="x")), InvalidName, "model"),
    ],
)
async def test_a_bad_request_is_refused_by_field(request_of, error, param, published):
    refusal = await error_of(request_of(published))
    assert (type(refusal), refusal.param) == (error, param)


async def test_a_cell_that_asks_nobody_has_no_list_of_its_own(cell):
    assert await cell.CellAcl(cell_pb2.CellAclRequest()) == cell_pb2.CellAclResponse()
    error = await error_of(cell.SetCellAcl(cell_pb2.SetCellAclRequest(admin_acl="alice")))
    assert (type(error), error.param) == (UnsupportedParameter, "admin_acl")


async def test_events_are_told_by_page_and_by_model_even_of_one_that_is_gone(stub, cell):
    await publish(stub)
    await publish(stub, "other")
    await update(stub, requested_num_replicas=3)
    await stub.Unpublish(admin_pb2.UnpublishRequest(model_id=M))
    told = await events_of(cell)
    assert [one.sequence for one in told] == [5, 4, 3, 2, 1]
    assert [one.sequence for one in await events_of(cell, limit=2)] == [5, 4]
    assert [one.sequence for one in await events_of(cell, before=3, limit=1)] == [2]
    assert [one.sequence for one in await events_of(cell, model_id=M)] == [5, 4, 2]
    assert told[1].text == "replicas 1 -> 3"
    assert told[3].version


async def test_an_event_names_who_made_the_call(admin):
    """The edge says who calls; here it is this test's own task."""
    admin_service, cell_service = AdminService(admin.role), CellService(admin.role)
    acl.enter_call(acl.Principal("ann"))
    await admin_service.Publish(admin_pb2.PublishRequest(model=model()), None)
    acl.enter_call(acl.Principal("bob"))
    changed = model(checkpoint_path="/two")
    await admin_service.Update(admin_pb2.UpdateRequest(model=changed), None)
    acl.enter_call(acl.Principal("cy"))
    await cell_service.Rollback(cell_pb2.RollbackRequest(model_id=M), None)
    acl.enter_call(acl.Principal("dee"))
    by = [one.by for one in admin.cell.versions(M)]
    await admin_service.Unpublish(admin_pb2.UnpublishRequest(model_id=M), None)
    assert [one.by for one in await admin.cell.events()][:4] == ["dee", "cy", "bob", "ann"]
    assert by == ["bob", "ann"]


async def test_the_service_is_healthy_and_described(admin):
    async with open_channel(f"127.0.0.1:{admin.port}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        reply = await check(health_pb2.HealthCheckRequest(service="sax.Cell"))
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.extended
async def test_what_happened_to_servers_is_remembered(admin, stub, start_modelet):
    modelet = await start_modelet()
    await publish(stub)
    recent = admin.cell.recent_events
    await eventually(lambda: {e.kind for e in recent.newest(10)} >= {"joined", "ready"})
    (ready,) = [e for e in recent.newest(10) if e.kind == "ready"]
    assert (ready.server, ready.model_id) == (modelet.address, M)
    await modelet.stop()
    await eventually(lambda: recent.newest(1)[0].kind == "dropped")


async def test_a_load_that_fails_is_remembered_with_its_reason(admin, stub, start_modelet):
    modelet = await start_modelet()
    modelet.failing = "tensor missing"
    await publish(stub)
    failed = admin.cell.recent_events
    await eventually(lambda: any(h.kind == "load-failed" for h in failed.newest(50)))
    told = next(h for h in failed.newest(50) if h.kind == "load-failed")
    assert "tensor missing" in told.text


async def test_logs_of_the_admin_server_and_of_its_model_servers_are_told(
    cell, admin, start_modelet
):
    logger, handler = logging.getLogger("tests.admin"), LastLines()
    logger.addHandler(handler)
    logger.error("a disk is full")
    logger.removeHandler(handler)
    own = (await cell.Log(control_pb2.LogRequest())).lines[-1]
    assert (own.level, own.logger, own.text) == ("error", "tests.admin", "a disk is full")
    modelet = await start_modelet()
    await eventually(
        lambda: [each.info.address for each in admin.cell.servers()] == [modelet.address]
    )
    told = decode_log(await cell.Log(control_pb2.LogRequest(server=modelet.address)))
    assert told == [LogLine(at_s=5.0, level="info", logger="fake", text=modelet.address)]
    error = await error_of(cell.Log(control_pb2.LogRequest(server="127.0.0.1:9")))
    assert isinstance(error, NotFound)
    assert error.param == "server"
