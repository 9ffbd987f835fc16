"""Changes of weights through the client, with a real admin server and fake model servers."""

from __future__ import annotations

from contextlib import suppress

import pytest

from admin_server.api.access import Access
from admin_server.process import Running
from sax.auth.acl import Principal, parse_acl
from sax.client import AsyncClient
from sax.errors import (
    CheckpointError,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    PermissionDenied,
    Unavailable,
)
from sax.types import ModelSpec
from sax.weights import METHOD

M = "/sax/test/m"


async def test_all_replicas_change_together_or_are_named(admin: Running, start_modelet) -> None:
    async with AsyncClient(f"127.0.0.1:{admin.port}") as client:
        with pytest.raises(ModelNotFound):
            await client.update_weights(M, "/two")
        servers = [await start_modelet() for _ in range(2)]
        await client.publish(M, "llama", "/one", 3)
        await client.wait_for_ready(M, 2, timeout_s=60)
        assert await client.update_weights(M, "/two", version="v2") == "v2"
        assert [(each.version, each.error) for each in await client.weights(M)] == [("v2", "")] * 2
        with pytest.raises(InvalidRequest, match="mode is 'later': choose wait, keep, recompute"):
            await client.pause(M, "later")
        torn = servers[0].address
        with pytest.raises(Unavailable, match=f"differ now.*{torn}: .*is torn"):
            await client.update_weights(M, torn, version="v3")
        assert sorted(each.version for each in await client.weights(M)) == ["v2", "v3"]
        with pytest.raises(CheckpointError, match="is torn"):
            await client.update_weights(M, "127.0.0.1")


async def test_a_model_without_a_ready_replica_has_no_weights_to_change(admin: Running) -> None:
    async with AsyncClient(f"127.0.0.1:{admin.port}") as client:
        await client.publish(M, "llama", "/one")
        with pytest.raises(ModelNotReady, match="no replica"):
            await client.sleep(M)


def spec_of(acls: dict[str, str]) -> ModelSpec:
    model = {"model_id": M, "model_path": "llama", "checkpoint": "/one"}
    return ModelSpec(**model, replicas=1, acls=acls, admin_acl="owner")


def test_the_right_to_change_weights_is_one_of_its_own() -> None:
    access = Access(enforced=True, cell="/sax/test", admins=parse_acl("root", "admin_acl"))
    open_to_all = {"*": "*", "lm.generate": "*", METHOD: "trainer"}
    spec = spec_of(open_to_all)

    def may(name: str, spec: ModelSpec) -> bool:
        with suppress(PermissionDenied):
            access.check_weights(Principal(name), spec)
            return True
        return False

    names = ("", "root", "owner", "trainer", "user")
    assert [may(name, spec) for name in names] == [False, True, True, True, False]
    unlisted = spec_of({"*": "*"})
    assert [may(name, unlisted) for name in names] == [False, True, True, False, False]
    access.check_weights(Principal("user"), None)  # it does not exist, which the caller reports
