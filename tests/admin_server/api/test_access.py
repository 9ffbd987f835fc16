"""Who may change what in a cell, over a real port."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from admin_server.__main__ import parse
from admin_server.api.access import Access
from admin_server.config import AdminConfig
from admin_server.process import running
from sax.auth.acl import ANYONE, Principal, parse_acl
from sax.auth.security import Security
from sax.errors import (
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
    SaxError,
    Unauthenticated,
    UnsupportedParameter,
)
from sax.proto import admin_pb2, admin_pb2_grpc, cell_pb2, cell_pb2_grpc, common_pb2, control_pb2
from sax.types import ModelSpec
from sax.wire.rpc import open_channel, to_sax_error
from sax.wire.servers import encode_join
from tests.admin_server.conftest import FAST, eventually
from tests.admin_server.fake_modelet import FakeModelet
from tests.identities import Identities

MODEL = "/sax/test/m"
EVERYONE = ("", "stranger", "root", "owner", "server", "user")


@dataclass
class Guarded:
    """An admin server that asks who calls, and its address."""

    people: Identities
    channel: grpc.aio.Channel
    port: int

    async def call(self, who: str, method: str, request: Any) -> Any:
        """One call of the Admin or Cell service by this person. Raises SaxError."""
        stub = admin_pb2_grpc.AdminStub(self.channel)
        if not hasattr(stub, method):
            stub = cell_pb2_grpc.CellStub(self.channel)
        try:
            return await getattr(stub, method)(request, metadata=self.people.metadata(who))
        except grpc.aio.AioRpcError as exc:
            raise to_sax_error(exc, "the admin server") from exc

    async def publish(self, who: str, name: str = MODEL, **changes: Any) -> None:
        settings = {"checkpoint_path": "c", "requested_num_replicas": 0, **changes}
        model = admin_pb2.Model(model_id=name, model_path="llama", **settings)
        await self.call(who, "Publish", admin_pb2.PublishRequest(model=model))

    async def model(self) -> admin_pb2.Model:
        reply = await self.call("user", "List", admin_pb2.ListRequest(model_id=MODEL))
        return reply.published_models[0].model

    async def who_may(self, do: Callable[[str], Awaitable[Any]]) -> dict[str, type[SaxError]]:
        """Everyone tries; who was refused, and how."""
        refusals: dict[str, type[SaxError]] = {}
        for who in EVERYONE:
            try:
                await do(who)
            except (Unauthenticated, PermissionDenied) as exc:
                refusals[who] = type(exc)
        return refusals


NOBODY_KNOWN = {"": Unauthenticated, "stranger": Unauthenticated}


def guarded_config(config: AdminConfig, people: Identities) -> AdminConfig:
    return replace(config, security=Security(tokens=str(people.path), admin_acl="root, server"))


@pytest_asyncio.fixture
async def cell(config: AdminConfig, tmp_path: Path) -> AsyncGenerator[Guarded]:
    people = Identities(tmp_path, "root", "owner", "server", "user")
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(running(guarded_config(config, people), FAST))
        channel = await stack.enter_async_context(open_channel(f"127.0.0.1:{admin.port}"))
        yield Guarded(people, channel, admin.port)


async def test_only_the_cells_admins_may_publish(cell: Guarded) -> None:
    async def publish(who: str) -> None:
        await cell.publish(who, f"/sax/test/m-{who}")

    assert await cell.who_may(publish) == {
        **NOBODY_KNOWN,
        "owner": PermissionDenied,
        "user": PermissionDenied,
    }
    with pytest.raises(PermissionDenied, match=r"user may not publish.*root, server.*--admin_acl"):
        await cell.publish("user")


async def test_whoever_is_known_may_read_the_cells_own_list(cell: Guarded) -> None:
    async def read(who: str) -> None:
        reply = await cell.call(who, "CellAcl", cell_pb2.CellAclRequest())
        assert (reply.admin_acl, reply.enforced) == ("root, server", True)

    assert await cell.who_may(read) == NOBODY_KNOWN


async def test_only_the_cells_admins_may_read_logs(cell: Guarded) -> None:
    async def read(who: str) -> None:
        await cell.call(who, "Log", control_pb2.LogRequest())

    refused = {"owner": PermissionDenied, "user": PermissionDenied}
    assert await cell.who_may(read) == {**NOBODY_KNOWN, **refused}


async def test_a_cells_list_is_set_by_its_admins_and_kept(
    cell: Guarded, config: AdminConfig
) -> None:
    async def grant(who: str) -> None:
        await cell.call(who, "SetCellAcl", cell_pb2.SetCellAclRequest(admin_acl="owner"))

    refused = {**NOBODY_KNOWN, "owner": PermissionDenied, "user": PermissionDenied}
    assert await cell.who_may(grant) | {"owner": PermissionDenied} == refused
    await cell.publish("owner", "/sax/test/m-owner")
    reply = await cell.call("user", "CellAcl", cell_pb2.CellAclRequest())
    assert reply.admin_acl == "owner, root, server"
    with pytest.raises(InvalidRequest):
        await cell.call("root", "SetCellAcl", cell_pb2.SetCellAclRequest(admin_acl="a b"))
    (event,) = (await cell.call("root", "Events", cell_pb2.EventsRequest(limit=2))).events[1:]
    assert (event.kind, event.text) == ("grant", "admin acl none -> owner")


async def test_a_list_of_the_cell_outlives_the_leader_and_locks_nobody_out(
    config: AdminConfig, tmp_path: Path
) -> None:
    people = Identities(tmp_path, "root", "owner", "server", "user")
    for acl in ("owner", ""):
        async with (
            running(guarded_config(config, people), FAST) as admin,
            open_channel(f"127.0.0.1:{admin.port}") as channel,
        ):
            guarded = Guarded(people, channel, admin.port)
            request = cell_pb2.SetCellAclRequest(admin_acl=acl)
            await guarded.call("root", "SetCellAcl", request)
            assert admin.cell.ledger.state.admin_acl == acl
        async with running(guarded_config(config, people), FAST) as again:
            assert again.cell.ledger.state.admin_acl == acl


async def test_only_the_cells_admins_may_join_model_servers(cell: Guarded) -> None:
    there = await FakeModelet().start()

    async def join(who: str) -> None:
        await cell.call(who, "Join", encode_join(there.info))

    assert set(await cell.who_may(join)) == {"", "stranger", "owner", "user"}
    await there.stop()


async def test_a_models_own_admins_may_change_it_and_nothing_else(cell: Guarded) -> None:
    await cell.publish("root", admin_acl="owner")

    async def update(who: str) -> None:
        model = await cell.model()
        model.requested_num_replicas += 1
        await cell.call(who, "Update", admin_pb2.UpdateRequest(model=model))

    refused = {**NOBODY_KNOWN, "user": PermissionDenied}
    assert await cell.who_may(update) == refused
    assert (await cell.model()).requested_num_replicas == 3

    async def unpublish(who: str) -> None:
        try:
            await cell.call(who, "Unpublish", admin_pb2.UnpublishRequest(model_id=MODEL))
        except ModelNotFound:
            return
        await cell.publish("root", admin_acl="owner")

    assert await cell.who_may(unpublish) == refused
    await cell.call("owner", "Unpublish", admin_pb2.UnpublishRequest(model_id=MODEL))
    with pytest.raises(PermissionDenied):
        await cell.publish("owner")


async def test_a_models_own_admins_may_roll_it_back(cell: Guarded) -> None:
    await cell.publish("root", admin_acl="owner")

    async def change(who: str) -> None:
        model = await cell.model()
        model.checkpoint_path = f"c-{model.revision}"
        await cell.call("root", "Update", admin_pb2.UpdateRequest(model=model))
        await cell.call(who, "Rollback", cell_pb2.RollbackRequest(model_id=MODEL))

    assert await cell.who_may(change) == {**NOBODY_KNOWN, "user": PermissionDenied}


async def test_the_log_says_who_changed_what(cell: Guarded) -> None:
    await cell.publish("root", admin_acl="owner")
    await cell.call("owner", "Unpublish", admin_pb2.UnpublishRequest(model_id=MODEL))
    reply = await cell.call("user", "Events", cell_pb2.EventsRequest(model_id=MODEL))
    told = [(event.kind, event.by) for event in reply.events]
    assert told == [("unpublish", "owner"), ("publish", "root")]


async def test_a_change_of_a_models_admins_is_in_force_at_once(cell: Guarded) -> None:
    await cell.publish("root", admin_acl="owner")
    model = await cell.model()
    model.admin_acl = "user"
    await cell.call("owner", "Update", admin_pb2.UpdateRequest(model=model))
    with pytest.raises(PermissionDenied, match=r"owner may not update /sax/test/m.*user"):
        await cell.call("owner", "Update", admin_pb2.UpdateRequest(model=model))
    await cell.call("user", "Update", admin_pb2.UpdateRequest(model=await cell.model()))


async def test_everyone_who_is_known_may_look(cell: Guarded) -> None:
    await cell.publish("root")
    for method, request in (
        ("List", admin_pb2.ListRequest()),
        ("Stats", admin_pb2.StatsRequest()),
        ("WaitForReady", admin_pb2.WaitForReadyRequest(model_id=MODEL)),
        ("WatchLoc", admin_pb2.WatchLocRequest(model_id=MODEL)),
        ("Versions", cell_pb2.VersionsRequest(model_id=MODEL)),
        ("Events", cell_pb2.EventsRequest()),
    ):

        async def look(who: str, method: str = method, request: Any = request) -> None:
            await cell.call(who, method, request)

        assert await cell.who_may(look) == NOBODY_KNOWN, method


async def test_a_token_that_is_withdrawn_is_refused_at_the_next_call(cell: Guarded) -> None:
    await cell.call("root", "List", admin_pb2.ListRequest())
    token = cell.people.tokens.pop("root")
    cell.people.write()
    cell.people.tokens["root"] = token
    with pytest.raises(Unauthenticated, match="SAX_TOKEN"):
        await cell.call("root", "List", admin_pb2.ListRequest())


async def test_lists_are_kept_as_they_were_written_and_listed(cell: Guarded) -> None:
    acls = common_pb2.AccessControlLists(items={"lm.generate": "user, owner", "*": "*"})
    await cell.publish("root", acls=acls, admin_acl="owner")
    assert dict((await cell.model()).acls.items) == {"lm.generate": "user, owner", "*": "*"}
    bad = common_pb2.AccessControlLists(items={"lm.genrate": "user"})
    with pytest.raises(InvalidRequest, match=r"lm\.generate_stream") as refused:
        await cell.publish("root", "/sax/test/other", acls=bad)
    assert refused.value.param == "acls"


async def test_health_answers_whoever_asks(cell: Guarded) -> None:
    reply = await health_pb2_grpc.HealthStub(cell.channel).Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_an_admin_server_that_a_model_server_refuses_says_so(
    cell: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    modelet = await FakeModelet(tokens=cell.people.path).start()
    try:
        await cell.call("server", "Join", encode_join(modelet.info))
        await cell.publish("root", requested_num_replicas=1)
        await eventually(lambda: "refuses this admin server" in caplog.text)
        assert "SAX_TOKEN" in caplog.text
        reason = ""
        while "refuses this admin server" not in reason:
            reply = await cell.call("user", "List", admin_pb2.ListRequest(model_id=MODEL))
            reason = reply.published_models[0].replicas[0].reason
        told = [r for r in caplog.records if "refuses this admin server" in r.getMessage()]
        assert len(told) == 1
    finally:
        await modelet.stop()


async def test_an_admin_server_with_a_token_is_let_in(
    config: AdminConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = Identities(tmp_path, "root", "server", "user")
    monkeypatch.setenv("SAX_TOKEN", people.tokens["server"])
    modelet = await FakeModelet(tokens=people.path).start()
    try:
        async with running(guarded_config(config, people), FAST) as admin:
            await modelet.join(admin.port)
            async with open_channel(f"127.0.0.1:{admin.port}") as channel:
                guarded = Guarded(people, channel, admin.port)
                await guarded.publish("root", requested_num_replicas=1)
            await eventually(lambda: modelet.holds(MODEL))
    finally:
        await modelet.stop()


async def test_without_authentication_lists_are_refused_and_kept_ones_told_of(
    config: AdminConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    people = Identities(tmp_path, "root")
    async with (
        running(guarded_config(config, people), FAST) as admin,
        open_channel(f"127.0.0.1:{admin.port}") as channel,
    ):
        acls = common_pb2.AccessControlLists(items={"lm.score": "user"})
        await Guarded(people, channel, admin.port).publish("root", acls=acls)
    assert "not enforced" not in caplog.text
    async with (
        running(config, FAST) as admin,
        open_channel(f"127.0.0.1:{admin.port}") as channel,
    ):
        assert f"access control lists of {MODEL} are not enforced" in caplog.text
        unguarded = Guarded(people, channel, admin.port)
        with pytest.raises(UnsupportedParameter, match="--tokens") as refused:
            await unguarded.publish("", "/sax/test/other", acls=acls)
        assert refused.value.param == "acls"
        await unguarded.publish("", "/sax/test/other")


async def test_tokens_that_cannot_be_read_end_the_start(
    config: AdminConfig, tmp_path: Path
) -> None:
    missing = Security(tokens=str(tmp_path / "missing"), admin_acl="root")
    with pytest.raises(InvalidRequest, match="missing"):
        async with running(replace(config, security=missing), FAST):
            pass


def test_flags_that_would_lock_everyone_out_are_a_wrong_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse(["--tokens", "f", "--admin_acl", "root"]).security.admins.names == {"root"}
    with pytest.raises(SystemExit):
        parse(["--tokens", "f"])
    assert "--admin_acl names nobody" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_an_open_admin_server_that_others_reach_warns_loudly(
    config: AdminConfig, caplog: pytest.LogCaptureFixture, host: str, warns: bool
) -> None:
    caplog.set_level(logging.WARNING)
    async with running(replace(config, host=host), FAST):
        assert ("OPEN TO EVERYONE" in caplog.text) == warns
        assert ("--admin_acl" in caplog.text) == warns


def test_the_decision_is_a_function_of_values() -> None:
    access = Access(enforced=True, cell="/sax/test", admins=parse_acl("root", "admin_acl"))
    spec = ModelSpec(
        model_id=MODEL, model_path="p", checkpoint="c", replicas=1, admin_acl="owner, *"
    )
    access.check_model(Principal("anybody"), spec, "update")
    access.check_model(Principal("anybody"), None, "update")
    for stranger in (ANYONE, Principal("owner")):
        with pytest.raises(PermissionDenied):
            access.check_cell(stranger, "publish")
    with pytest.raises(PermissionDenied):
        access.check_model(ANYONE, spec, "update")
    Access().check_cell(ANYONE, "publish")


async def test_rights_tell_what_a_caller_may_change(cell: Guarded) -> None:
    await cell.publish("root", admin_acl="owner")
    await cell.publish("root", "/sax/test/other")
    for who, publish, models in (
        ("root", True, []),
        ("server", True, []),
        ("owner", False, [MODEL]),
        ("user", False, []),
    ):
        rights = await cell.call(who, "Rights", cell_pb2.RightsRequest())
        assert (rights.publish, list(rights.models)) == (publish, models), who
    refused = await cell.who_may(lambda who: cell.call(who, "Rights", cell_pb2.RightsRequest()))
    assert refused == NOBODY_KNOWN


def test_without_authentication_everyone_may_change_everything() -> None:
    assert Access().rights(ANYONE, []).may_change(MODEL)
