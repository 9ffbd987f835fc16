from dataclasses import replace

import httpx
import pytest

from http_gateway.config import GatewayConfig
from sax.distribution import version
from sax.errors import AdminUnavailable
from sax.types import Autoscaling, ServableStatus
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell, published


async def test_the_greeting_is_saxmls_in_both_generations(
    http: httpx.AsyncClient, http_1: httpx.AsyncClient
):
    text = '{\n    "message": "HTTP Server for SAX Client"\n}'
    new, old = await http.get("/"), await http_1.get("/")
    assert (new.text, new.headers["content-type"]) == (text, "application/json")
    assert old.text == text + "\n"
    assert "content-type" not in old.headers


async def test_the_process_is_alive_even_without_an_admin(cell: FakeCell, http: httpx.AsyncClient):
    cell.admin_failure = AdminUnavailable("the admin is away")
    assert (await http.get("/healthz")).json() == {"status": "alive"}
    assert (await http.head("/healthz")).status_code == 200


async def test_a_gateway_is_ready_once_a_published_model_has_a_ready_replica(
    cell: FakeCell, http: httpx.AsyncClient
):
    cell.models = {"m": published("/sax/test/m", ready=0, replicas=2, reason="bucket 3 of 8")}
    waiting = await http.get("/readyz")
    assert waiting.status_code == 503
    assert waiting.headers["retry-after"] == "1"
    assert waiting.json() == {
        "status": "not ready",
        "admin": "ok",
        "models": {
            "/sax/test/m": [
                "127.0.0.1:1: loading: bucket 3 of 8",
                "127.0.0.1:2: loading: bucket 3 of 8",
            ]
        },
    }
    cell.models = {"m": published("/sax/test/m", ready=1, replicas=2)}
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["models"]) == (200, ["/sax/test/m"])


async def test_an_empty_cell_is_not_ready(connect: Connect, cell: FakeCell):
    cell.models = {}
    answer = await connect(GatewayConfig()).get("/readyz")
    assert (answer.status_code, answer.json()["models"]) == (503, {})


async def test_readiness_outlives_the_admin_because_requests_do_not_pass_through_it(
    cell: FakeCell, http: httpx.AsyncClient
):
    assert (await http.get("/readyz")).status_code == 200
    cell.admin_failure = AdminUnavailable("the admin is away")
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["admin"]) == (200, "the admin is away")


async def test_a_gateway_that_never_met_its_admin_is_not_ready(
    cell: FakeCell, http: httpx.AsyncClient
):
    cell.admin_failure = AdminUnavailable("the admin is away")
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["admin"]) == (503, "the admin is away")


@each_case(
    "name",
    [
        "sax_gateway_requests_total",
        "sax_gateway_requests_in_flight",
        "sax_gateway_request_seconds",
        "sax_gateway_time_to_first_token_seconds",
        "sax_gateway_prompt_tokens_total",
        "sax_gateway_completion_tokens_total",
        "sax_gateway_disconnects_total",
        "sax_gateway_broken_streams_total",
    ],
)
async def test_every_metric_is_told_with_a_help_text(name: str, http: httpx.AsyncClient):
    answer = await http.get("/metrics")
    assert f"# HELP {name} " in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


async def test_two_gateways_in_one_process_count_apart(
    http: httpx.AsyncClient, http_1: httpx.AsyncClient
):
    await http.get("/healthz")
    assert 'route="/healthz"' not in (await http_1.get("/metrics")).text


async def test_a_gateway_whose_model_sleeps_is_ready_for_the_request_that_wakes_it(
    cell: FakeCell, http: httpx.AsyncClient
):
    model = published("/sax/test/m", ready=0, replicas=1, reason="bucket 3 of 8")
    bounds = Autoscaling(min_replicas=0, max_replicas=1)
    waking = replace(model, spec=replace(model.spec, autoscaling=bounds), wanted=1)
    asleep = replace(waking, replicas=(), wanted=0)
    (replica,) = model.replicas
    failed = replace(waking, replicas=(replace(replica, status=ServableStatus.FAILED),))
    statuses: list[int] = []
    for each in (asleep, waking, failed):
        cell.models = {"m": each}
        statuses.append((await http.get("/readyz")).status_code)
    assert statuses == [200, 200, 503]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")]
)
async def test_vllms_health_is_readiness_without_a_body(
    cell: FakeCell, http: httpx.AsyncClient, method: str, path: str
) -> None:
    good = await http.request(method, path)
    assert (good.status_code, good.content) == (200, b"")
    cell.models = {"m": published("/sax/test/m", ready=0, replicas=1)}
    bad = await http.request(method, path)
    assert (bad.status_code, bad.content, bad.headers["retry-after"]) == (503, b"", "1")
    assert (await http.get("/healthz")).status_code == 200


async def test_the_version_is_the_packages(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version")).json() == {"version": version()}


@each_case(
    "path, allow",
    [
        ("/listcell", "GET, HEAD, POST"),
        ("/healthz", "GET, HEAD"),
        ("/ping", "GET, HEAD, POST"),
        ("/v1/models/a/b", "GET, HEAD"),
        ("/v1/chat/completions", "POST"),
    ],
)
async def test_a_wrong_method_is_told_every_right_one(
    path: str, allow: str, http: httpx.AsyncClient
) -> None:
    for method in ("DELETE", "TRACE", "OPTIONS"):
        reply = await http.request(method, path)
        assert (reply.status_code, reply.headers["allow"]) == (405, allow)
