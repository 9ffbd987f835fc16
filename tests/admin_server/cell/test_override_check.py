"""Overrides that mean nothing are refused at publish where a joined server knows them."""

import asyncio

import pytest

from admin_server.cell.override_check import knowing_server
from sax.errors import InvalidRequest
from sax.types import ModelSpec, ServableStatus, ServerInfo
from tests.admin_server.conftest import eventually

M = "/sax/test/m"


def spec(**changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/one", "replicas": 1, **changes}
    return ModelSpec(model_id=M, **settings)


@pytest.mark.virtual_time
async def test_publish_and_update_refuse_what_a_server_refuses(admin, start_modelet):
    modelet = await start_modelet()
    modelet.bad_override = "NONSENSE"
    bad = spec(overrides={"NONSENSE": "1"})
    with pytest.raises(InvalidRequest, match="NONSENSE") as refusal:
        await admin.cell.publish(bad)
    assert refusal.value.param == "overrides.NONSENSE"
    assert admin.cell.models() == []
    await admin.cell.publish(spec())
    with pytest.raises(InvalidRequest, match="NONSENSE"):
        await admin.cell.update(bad)
    assert admin.cell.find(M).spec.overrides == {}
    assert modelet.checks == 2  # a spec without overrides needs none


@pytest.mark.virtual_time
async def test_a_bad_override_that_nobody_could_check_fails_once_and_is_not_retried(
    admin, start_modelet
):
    await admin.cell.publish(spec(overrides={"NONSENSE": "1"}))
    modelet = await start_modelet()
    modelet.bad_override = "NONSENSE"
    await eventually(lambda: "not retried" in admin.cell.find(M).replicas[0].reason)
    (replica,) = admin.cell.find(M).replicas
    assert replica.status is ServableStatus.FAILED
    assert "unknown override 'NONSENSE'; it is not retried until" in replica.reason
    loads = modelet.calls.count(("load", M))
    await asyncio.sleep(600)
    assert modelet.calls.count(("load", M)) == loads == 1
    await admin.cell.update(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)


@pytest.mark.virtual_time
async def test_a_server_that_checks_nothing_lets_everything_pass(admin, start_modelet):
    modelet = await start_modelet()
    modelet.cannot_check = True
    await admin.cell.publish(spec(overrides={"ANY": "1"}))
    assert admin.cell.find(M).spec.overrides == {"ANY": "1"}


def test_only_a_server_that_serves_the_path_and_answers_is_asked():
    infos = [ServerInfo(address=f"h:{n}", model_paths=p) for n, p in enumerate([("a",), ("b",)], 1)]
    assert knowing_server(spec(model_path="b"), infos, ()) == "h:2"
    assert knowing_server(spec(model_path="b"), infos, {"h:2"}) is None
    assert knowing_server(spec(model_path="c"), infos, ()) is None
