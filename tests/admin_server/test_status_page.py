"""The status page over HTTP: says why, and lets nothing become markup."""

import httpx
import pytest
import pytest_asyncio

from admin_server.config import AdminConfig
from admin_server.process import running
from sax.errors import InvalidRequest
from sax.types import ModelSpec
from tests.admin_server.conftest import FAST, eventually

M = "/sax/test/m"


@pytest_asyncio.fixture
async def http(admin):
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin.status_port}") as client:
        yield client


def spec(**changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/one", "replicas": 1, **changes}
    return ModelSpec(model_id=M, **settings)


async def test_a_model_that_is_not_ready_says_why(admin, http):
    await admin.cell.publish(spec())
    await eventually(lambda: "joined" in admin.cell.find(M).replicas[0].reason)
    (model,) = (await http.get("/status.json")).json()["models"]
    assert model["replicas"][0]["reason"] == "no model server has joined this cell"
    assert (model["wanted_replicas"], model["ready_replicas"]) == (1, 0)


async def test_a_load_shows_its_progress_and_a_server_its_memory(admin, http, start_modelet):
    modelet = await start_modelet()
    modelet.may_load.clear()
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).replicas[0].progress)
    status = (await http.get("/status.json")).json()
    assert status["models"][0]["replicas"][0]["progress"] == {
        "phase": "reading weights",
        "done": 1,
        "total": 2,
        "unit": "",
    }
    (server,) = status["servers"]
    assert (server["address"], server["memory_total"]) == (modelet.address, 2**30)
    modelet.may_load.set()


async def test_records_are_told_the_newest_first(admin, http):
    await admin.cell.publish(spec())
    await admin.cell.update(spec(replicas=2))
    await admin.cell.unpublish(M)
    records = (await http.get("/status.json")).json()["records"]
    assert [(one["sequence"], one["kind"]) for one in records] == [
        (3, "unpublish"),
        (2, "update"),
        (1, "publish"),
    ]


async def test_names_stay_text_whatever_is_in_them(admin, http, start_modelet):
    """The page is one constant text that writes JSON into text nodes only."""
    before = await http.get("/")
    modelet = await start_modelet()
    modelet.failing = "<script>alert(1)</script>"
    await admin.cell.publish(spec(overrides={"<b>": '"</td>"'}))
    await eventually(lambda: "<script>" in admin.cell.find(M).replicas[0].reason)
    after, status = await http.get("/"), await http.get("/status.json")
    assert before.text == after.text
    assert status.headers["content-type"] == "application/json"
    assert "<script>alert(1)" in status.json()["models"][0]["replicas"][0]["reason"]
    for way_in in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way_in not in after.text
    assert "default-src 'none'" in after.headers["content-security-policy"]


async def test_the_process_is_healthy(http):
    assert (await http.get("/healthz")).status_code == 200


async def test_metrics_count_models_replicas_and_actions(admin, http, start_modelet):
    await start_modelet()
    await admin.cell.publish(spec(replicas=2))
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    await eventually(lambda: admin.cell.reconciler.loads == 1)
    lines = (await http.get("/metrics")).text.splitlines()
    assert "sax_admin_models 1.0" in lines
    assert "sax_admin_servers 1.0" in lines
    assert "sax_admin_records_total 1.0" in lines
    assert "sax_admin_loads_total 1.0" in lines
    assert f'sax_admin_wanted_replicas{{model="{M}"}} 2.0' in lines
    assert f'sax_admin_replicas{{model="{M}",status="loaded"}} 1.0' in lines
    assert f'sax_admin_replicas{{model="{M}",status="none"}} 1.0' in lines


async def test_a_taken_status_port_is_refused_by_name(admin, tmp_path):
    taken = AdminConfig(port=0, status_port=admin.status_port, fs_root=str(tmp_path / "other"))
    with pytest.raises(InvalidRequest) as refusal:
        async with running(taken, FAST):
            pass
    assert refusal.value.param == "status_port"


async def test_a_taken_port_is_refused_by_name(admin, tmp_path):
    taken = AdminConfig(port=admin.port, status_port=-1, fs_root=str(tmp_path / "other"))
    with pytest.raises(InvalidRequest) as refusal:
        async with running(taken, FAST):
            pass
    assert refusal.value.param == "port"
