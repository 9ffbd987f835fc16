"""The status page over HTTP: says why, and lets nothing become markup."""

import re
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio

from admin_server.api.status_page import StatusView, build_app, describe
from admin_server.config import AdminConfig
from admin_server.process import Running, running
from sax.errors import InvalidRequest
from sax.types import Autoscaling, ModelSpec, Placement
from tests.admin_server.conftest import FAST, eventually
from tests.each_case import each_case
from tests.virtual_loop import now

M = "/sax/test/m"

over_http = pytest.mark.parametrize("status_port", [0])


@pytest_asyncio.fixture
async def http(admin: Running):
    """A client of the page: over HTTP if the admin server has a port for it."""
    url, transport = f"http://127.0.0.1:{admin.status_port}", None
    if admin.status_port is None:
        url, transport = "http://page", httpx.ASGITransport(build_app(admin.role, now))
    async with httpx.AsyncClient(base_url=url, transport=transport) as client:
        yield client


def spec(**changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/one", "replicas": 1, **changes}
    return ModelSpec(model_id=M, **settings)


@pytest.mark.virtual_time
async def test_a_model_that_is_not_ready_says_why(admin, http):
    await admin.cell.publish(spec())
    await eventually(lambda: "joined" in admin.cell.find(M).replicas[0].reason)
    (model,) = (await http.get("/status.json")).json()["models"]
    assert model["replicas"][0]["reason"] == "no model server has joined this cell"
    assert (model["wanted_replicas"], model["ready_replicas"]) == (1, 0)


@pytest.mark.virtual_time
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
    assert server["debug_address"] == "127.0.0.1:7"
    modelet.may_load.set()
    await eventually(lambda: admin.cell.find(M).ready_replicas)
    (server,) = (await http.get("/status.json")).json()["servers"]
    assert server["servables"][0]["kernels"] == "avx2, 2 threads"


@pytest.mark.virtual_time
async def test_events_are_told_the_newest_first_with_who_and_what(admin, http):
    await admin.cell.publish(spec(), by="ann")
    await admin.cell.update(spec(replicas=2))
    await admin.cell.unpublish(M)
    events = (await http.get("/status.json")).json()["events"]
    assert [(one["sequence"], one["kind"]) for one in events] == [
        (4, "unpublish"),
        (3, "update"),
        (2, "publish"),
        (1, "lead"),
    ]
    assert events[2]["by"] == "ann"
    assert events[1]["text"] == "replicas 1 -> 2"


@pytest.mark.virtual_time
async def test_what_happened_is_told_beside_the_records(admin, http, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: len(admin.cell.recent_events.newest(9)) == 2)
    told = (await http.get("/status.json")).json()["happenings"]
    assert [one["kind"] for one in told] == ["ready", "joined"]
    assert told[0]["text"] == f"{M} is ready on {modelet.address}"


@pytest.mark.virtual_time
async def test_totals_count_the_whole_cell(admin, http, start_modelet):
    await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas)
    status = (await http.get("/status.json?limit=0")).json()
    assert (status["models"], status["servers"]) == ([], [])
    assert status["totals"] == {
        "models": 1,
        "models_ready": 1,
        "wanted_replicas": 1,
        "ready_replicas": 1,
        "servers": 1,
        "servers_in_trouble": 0,
        "memory_used": 1000,
        "memory_total": 2**30,
    }


async def many(admin, count: int) -> None:
    for number in range(count):
        one = replace(spec(replicas=number % 2), model_id=f"/sax/test/m{number:03}")
        await admin.cell.publish(one)


@pytest.mark.virtual_time
async def test_a_page_of_models_is_what_was_asked_for_with_the_troubled_ones_first(admin, http):
    await many(admin, 6)
    status = (await http.get("/status.json?models_from=2&limit=2")).json()
    assert status["models_found"] == 6
    assert [one["model"][-4:] for one in status["models"]] == ["m005", "m000"]


@pytest.mark.virtual_time
async def test_models_are_found_by_what_is_in_them(admin, http):
    await many(admin, 6)
    expected = {"M00": 6, "m003": 1, "waiting": 3, "gemma": 0, "/one": 6}
    for words, found in expected.items():
        status = (await http.get("/status.json", params={"models": words})).json()
        assert (status["models_found"], status["totals"]["models"]) == (found, 6), words


@pytest.mark.virtual_time
async def test_servers_are_found_by_address_and_by_what_they_hold(admin, http, start_modelet):
    first, _ = await start_modelet(), await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas)
    for words, found in (("127.0.0.1", 2), (first.address, 1), (M, 1), ("tpu", 0)):
        status = (await http.get("/status.json", params={"servers": words})).json()
        assert status["servers_found"] == found


@pytest.mark.virtual_time
@each_case(
    "query, param",
    [
        ("limit=-1", "limit"),
        ("limit=1001", "limit"),
        ("models_from=x", "models_from"),
        ("servers_from=%C2%B2", "servers_from"),
        ("limit=" + "9" * 5000, "limit"),
        ("page=2", "page"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused_by_name(query, param, http):
    answer = await http.get(f"/status.json?{query}")
    assert answer.status_code == 400
    assert answer.json()["param"] == param


@pytest.mark.virtual_time
async def test_autoscaling_and_leadership_are_told(admin, config):
    scaling = Autoscaling(min_replicas=0, max_replicas=4)
    await admin.cell.publish(spec(autoscaling=scaling, placement=Placement(tags=("big",))))
    told = describe(admin.role, 0.0, StatusView())
    assert told["leadership"] == "leads /sax/test since record 1"
    assert told["models"][0]["autoscaling"]["max_replicas"] == 4
    assert told["models"][0]["placement"]["tags"] == ["big"]


@pytest.mark.virtual_time
async def test_a_model_with_very_many_replicas_does_not_fill_the_page(admin, http):
    await admin.cell.publish(spec(replicas=1000))
    (model,) = (await http.get("/status.json")).json()["models"]
    assert (len(model["replicas"]), model["replicas_hidden"]) == (20, 980)


@pytest.mark.extended
@over_http
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
    policy = after.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "require-trusted-types-for 'script'" in policy


@pytest.mark.virtual_time
async def test_the_page_and_its_files_are_sent_once_and_then_known_by_their_tags(http):
    page = await http.get("/")
    names = re.findall(r'(?:href|src)="(page/[\w.]+)"', page.text)
    assert {"page/look.css", "page/theme.js", "page/status.js"} <= {*names}
    for name in (*names, "page/element.js", ""):
        first = await http.get(f"/{name}")
        assert first.status_code == 200
        again = await http.get(f"/{name}", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert (await http.get("/page/status_page.py")).status_code == 404


@over_http
async def test_the_process_is_healthy(http):
    assert (await http.get("/healthz")).status_code == 200


@pytest.mark.virtual_time
async def test_metrics_count_models_replicas_and_actions(admin, http, start_modelet):
    await start_modelet()
    await admin.cell.publish(spec(replicas=2))
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    await eventually(lambda: admin.cell.reconciler.loads == 1)
    lines = (await http.get("/metrics")).text.splitlines()
    assert "sax_admin_models 1.0" in lines
    assert "sax_admin_servers 1.0" in lines
    assert "sax_admin_records_total 2.0" in lines
    assert "sax_admin_loads_total 1.0" in lines
    assert any(line.startswith("sax_admin_server_pending_requests{") for line in lines)
    assert f'sax_admin_wanted_replicas{{model="{M}"}} 2.0' in lines
    assert f'sax_admin_replicas{{model="{M}",status="loaded"}} 1.0' in lines
    assert f'sax_admin_replicas{{model="{M}",status="none"}} 1.0' in lines


@pytest.mark.virtual_time
async def test_a_canary_is_on_the_page_and_in_the_metrics(admin, http, start_modelet):
    await start_modelet()
    await start_modelet()
    await admin.cell.publish(spec(replicas=2))
    await eventually(lambda: admin.cell.find(M).ready_replicas == 2)
    version = await admin.cell.canaries.start(M, "/two", {"A": "1"}, 10)
    await eventually(lambda: admin.cell.find(M).ready_canaries == 1)
    (model,) = (await http.get("/status.json")).json()["models"]
    assert model["canary"] == {
        "version": version,
        "checkpoint": "/two",
        "overrides": {"A": "1"},
        "percent": 10,
        "ready_replicas": 1,
    }
    assert sorted(replica["canary"] for replica in model["replicas"]) == [False, True]
    lines = (await http.get("/metrics")).text.splitlines()
    labels = f'{{model="{M}",version="{version}"}}'
    assert f"sax_admin_canary_percent{labels} 10.0" in lines
    assert f"sax_admin_canary_ready_replicas{labels} 1.0" in lines
    await admin.cell.canaries.abort(M)
    (model,) = (await http.get("/status.json")).json()["models"]
    assert model["canary"] is None
    assert labels not in (await http.get("/metrics")).text


@over_http
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


@pytest.mark.virtual_time
async def test_a_name_that_a_stranger_gave_this_machine_reads_nothing(admin):
    """DNS rebinding: the page asks for no key, and every page of the web can send requests."""
    for listens, host, status in (
        ("127.0.0.1", "localhost:10002", 200),
        ("127.0.0.1", "evil.example:10002", 403),
        ("0.0.0.0", "sax.internal", 200),
    ):
        transport = httpx.ASGITransport(build_app(admin.role, now, listens))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:10002", headers={"host": host}
        ) as http:
            for path in ("/", "/status.json", "/healthz", "/metrics"):
                assert (await http.get(path)).status_code == status
                assert (await http.head(path)).status_code == status


@over_http
async def test_head_is_answered_as_get_is_without_a_body(admin, http):
    for path in ("/", "/status.json", "/healthz", "/readyz", "/page/look.css", "/nowhere"):
        got, head = await http.get(path), await http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
