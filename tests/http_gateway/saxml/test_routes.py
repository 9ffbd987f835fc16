"""Generation 2, byte for byte, as in the tutorial."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from http_gateway.config import GatewayConfig
from sax.errors import ModelNotReady, QueueFull
from sax.types import Autoscaling
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell, published

SPEC = {"model": "/sax/test/new", "model_path": "llama", "checkpoint": "None", "replicas": 1}


async def test_publish_echoes_the_spec_with_replicas_as_a_number(
    cell: FakeCell, http: httpx.AsyncClient
):
    answer = await http.post("/publish", json={**SPEC, "replicas": "1"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.text == (
        '{\n    "model": "/sax/test/new",\n    "model_path": "llama",\n'
        '    "checkpoint": "None",\n    "replicas": 1\n}'
    )
    assert cell.models["/sax/test/new"].spec.replicas == 1


async def test_publish_with_overrides_echoes_them(cell: FakeCell, http: httpx.AsyncClient):
    answer = await http.post("/publish", json={**SPEC, "overrides": 'NUM_LAYERS=2 NAME="x"'})
    assert answer.text.endswith(
        '    "replicas": 1,\n    "overrides": {\n        "NUM_LAYERS": "2",\n'
        '        "NAME": "\\"x\\""\n    }\n}'
    )
    assert cell.models["/sax/test/new"].spec.overrides == {"NUM_LAYERS": "2", "NAME": '"x"'}


async def test_update_changes_the_spec_and_echoes_it(cell: FakeCell, http: httpx.AsyncClient):
    spec = {**SPEC, "model": "/sax/test/llama", "replicas": "3"}
    answer = await http.put("/update", json=spec)
    assert answer.text == (
        '{\n    "model": "/sax/test/llama",\n    "model_path": "llama",\n'
        '    "checkpoint": "None",\n    "replicas": 3\n}'
    )
    assert cell.models["/sax/test/llama"].spec.replicas == 3


async def test_unpublish_echoes_the_name(cell: FakeCell, http: httpx.AsyncClient):
    answer = await http.post("/unpublish", json={"model": "/sax/test/llama"})
    assert answer.text == '{\n    "model": "/sax/test/llama"\n}'
    assert list(cell.models) == ["/sax/test/smollm2"]


LISTED = (
    '{\n    "model": "/sax/test/m",\n    "model_path": "llama",\n    "checkpoint": "None",\n'
    '    "max_replicas": 3,\n    "active_replicas": 2\n}'
)


@each_case(
    "verb, arguments",
    [
        ("GET", {"json": {"model": "/sax/test/m"}}),
        ("GET", {"content": '{"model": "/sax/test/m"}'}),
        ("GET", {"params": {"model": "/sax/test/m"}}),
        ("POST", {"json": {"model": "/sax/test/m"}}),
        ("POST", {"params": {"model": "/sax/test/m"}}),
    ],
)
async def test_listcell_takes_a_body_or_a_query_and_counts_ready_replicas(
    verb: str, arguments: dict[str, Any], cell: FakeCell, http: httpx.AsyncClient
):
    cell.models["/sax/test/m"] = published("/sax/test/m", ready=2, replicas=3)
    answer = await http.request(verb, "/listcell", **arguments)
    assert (answer.status_code, answer.text) == (200, LISTED)


async def test_listcell_says_where_a_model_does_not_do_as_its_path_says(
    cell: FakeCell, http: httpx.AsyncClient
):
    ready = published("/sax/test/m", ready=2, replicas=2)
    told = tuple(replace(replica, note="answers are sampled") for replica in ready.replicas)
    cell.models["/sax/test/m"] = replace(ready, replicas=told)
    answer = await http.request("GET", "/listcell", json={"model": "/sax/test/m"})
    assert answer.json()["note"] == "answers are sampled"


async def test_listcell_warns_of_overrides_without_effect(cell: FakeCell, http: httpx.AsyncClient):
    ready = published("/sax/test/m", ready=2, replicas=2)
    cell.models["/sax/test/m"] = replace(ready, warnings=("BUCKET_KEYS has no effect here",))
    answer = await http.request("GET", "/listcell", json={"model": "/sax/test/m"})
    assert answer.json()["warnings"] == ["BUCKET_KEYS has no effect here"]


async def test_listcell_says_why_replicas_are_missing(cell: FakeCell, http: httpx.AsyncClient):
    short = published("/sax/test/m", ready=1, replicas=3, reason="needs 32 devices")
    cell.models["/sax/test/m"] = short
    answer = await http.request("GET", "/listcell", json={"model": "/sax/test/m"})
    assert answer.json()["reason"] == "needs 32 devices"


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("GET", {"json": {"sax_cell": "/sax/test"}}),
        ("GET", {"params": {"sax_cell": "/sax/test"}}),
        ("POST", {"json": {"sax_cell": "/sax/test"}}),
    ],
)
async def test_listall_tells_the_full_names_of_one_cell(
    cell: FakeCell, http: httpx.AsyncClient, verb: str, arguments: dict[str, Any]
):
    cell.models["/sax/other/m"] = published("/sax/other/m")
    answer = await http.request(verb, "/listall", **arguments)
    assert answer.text == '[\n    "/sax/test/smollm2",\n    "/sax/test/llama"\n]'


async def test_a_field_in_body_and_query_is_refused(http: httpx.AsyncClient):
    answer = await http.request("GET", "/listcell?model=/sax/test/llama", json={"model": "x"})
    assert answer.status_code == 400
    assert "query string, not both" in answer.json()["detail"]


async def test_generate_answers_texts_with_scores(cell: FakeCell, http: httpx.AsyncClient):
    body = {"model": "/sax/test/smollm2", "query": "été?", "extra_inputs": {"seed": 7}}
    answer = await http.post("/generate", json=body)
    assert answer.text == '[\n    [\n        "?été",\n        336.45\n    ]\n]'
    extra = {
        "temperature": 0.5,
        "per_example_max_decode_steps": 128.0,
        "per_example_top_k": 200.0,
        "per_example_top_p": 0.95,
        "seed": 7.0,
    }
    assert cell.saxml_requests == [("/sax/test/smollm2", "été?", extra)]


async def test_null_extra_inputs_leave_the_models_own_defaults(
    cell: FakeCell, http: httpx.AsyncClient
):
    body = {"model": "/sax/test/smollm2", "query": "q", "extra_inputs": None}
    assert (await http.post("/generate", json=body)).status_code == 200
    assert cell.saxml_requests[0][2] is None


async def test_an_unknown_extra_input_is_refused_by_name(http: httpx.AsyncClient):
    body = {"model": "/sax/test/smollm2", "query": "q", "extra_inputs": {"heat": 1}}
    answer = await http.post("/generate", json=body)
    assert answer.status_code == 400
    assert "heat" in answer.json()["detail"]


async def test_generate_on_an_unknown_model_offers_the_nearest_names(http: httpx.AsyncClient):
    answer = await http.post("/generate", json={"model": "/sax/test/smolm2", "query": "q"})
    assert answer.status_code == 404
    assert answer.json() == {
        "detail": "model /sax/test/smolm2 is not published; "
        "the nearest names are /sax/test/smollm2, /sax/test/llama"
    }


async def test_generate_without_a_ready_replica_says_why_and_when_to_ask_again(
    cell: FakeCell, http: httpx.AsyncClient
):
    cell.failure = ModelNotReady("no server of 8 chips", retry_after_s=2)
    answer = await http.post("/generate", json={"model": "/sax/test/llama", "query": "q"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json() == {"detail": "no server of 8 chips"}


async def test_a_full_queue_is_a_429(cell: FakeCell, http: httpx.AsyncClient):
    cell.failure = QueueFull("128 wait already", retry_after_s=4.2)
    answer = await http.post("/generate", json={"model": "/sax/test/llama", "query": "q"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")


@each_case(
    "verb, path, body, status, told",
    [
        ("POST", "/publish", {**SPEC, "model": "/sax/test/llama"}, 409, "published already"),
        ("POST", "/publish", {**SPEC, "model": "llama"}, 400, "/sax/<cell>/<model>"),
        ("POST", "/unpublish", {"model": "/sax/test/zzz"}, 404, "not published"),
        ("PUT", "/update", {**SPEC, "model": "/sax/test/zzz"}, 404, "not published"),
        ("GET", "/listcell", {"model": "/sax/test/zzz"}, 404, "not published"),
        ("GET", "/listall", {"sax_cell": "test"}, 400, "/sax/<cell>"),
        ("POST", "/generate", {"model": "smollm2", "query": "q"}, 400, "/sax/<cell>/<model>"),
    ],
)
async def test_errors_have_their_own_status_and_one_detail(
    verb: str, path: str, body: object, status: int, told: str, http: httpx.AsyncClient
):
    answer = await http.request(verb, path, json=body)
    assert answer.status_code == status
    assert list(answer.json()) == ["detail"]
    assert told in answer.json()["detail"]


@each_case(
    "verb, path, body, field",
    [
        ("POST", "/publish", {**SPEC, "replicas": "many"}, "replicas"),
        ("POST", "/publish", {**SPEC, "overrides": "A=x"}, "overrides"),
        ("POST", "/publish", {**SPEC, "replica": 1}, "replica"),
        ("POST", "/publish", {key: SPEC[key] for key in list(SPEC)[:3]}, "replicas"),
        ("POST", "/generate", {"model": 5, "query": "q"}, "model"),
        ("POST", "/generate", {"model": "/sax/test/llama"}, "query"),
        ("POST", "/unpublish", {}, "model"),
        ("GET", "/listcell", None, "model"),
        ("GET", "/listall", {}, "sax_cell"),
    ],
)
async def test_a_wrong_field_is_a_422_that_names_it(
    verb: str, path: str, body: object, field: str, http: httpx.AsyncClient
):
    arguments: dict[str, Any] = {} if body is None else {"json": body}
    answer = await http.request(verb, path, **arguments)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", field]


@each_case("body", [b"", b"{", b"\xff", b"[1,"])
async def test_malformed_json_is_a_400(body: bytes, http: httpx.AsyncClient):
    answer = await http.post("/publish", content=body)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("the body is not JSON")


async def test_unknown_paths_and_verbs_are_answered_as_fastapi_does(http: httpx.AsyncClient):
    unknown, verb = await http.get("/nope"), await http.get("/publish")
    assert (unknown.status_code, unknown.text) == (404, '{"detail":"Not Found"}')
    assert (verb.status_code, verb.text) == (405, '{"detail":"Method Not Allowed"}')


async def test_the_request_timeout_is_handed_to_the_client(connect: Connect, cell: FakeCell):
    http = connect(GatewayConfig(request_timeout_s=12.5))
    await http.post("/generate", json={"model": "/sax/test/llama", "query": "q"})
    chat = {"model": "llama", "messages": [{"role": "user", "content": "x"}]}
    await http.post("/v1/chat/completions", json=chat)
    assert cell.timeouts == [12.5, 12.5]


async def test_a_curl_without_a_json_content_type_is_read_all_the_same(http: httpx.AsyncClient):
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps({"model": "/sax/test/llama"})
    answer = await http.request("GET", "/listcell", content=body, headers=form)
    assert answer.status_code == 200


async def test_questions_are_answered_side_by_side(cell: FakeCell, http: httpx.AsyncClient):
    cell.hold_after = 0
    body = {"model": "/sax/test/llama", "query": "q"}
    asked = [asyncio.create_task(http.post("/generate", json=body)) for _ in range(3)]
    for _ in range(3):
        await cell.opened.get()
    cell.released.set()
    assert [one.status_code for one in await asyncio.gather(*asked)] == [200, 200, 200]


async def test_an_update_of_a_stale_revision_is_a_409(cell: FakeCell, http: httpx.AsyncClient):
    model = cell.models["/sax/test/llama"]
    cell.models["/sax/test/llama"] = replace(model, spec=replace(model.spec, revision=7))
    spec = {**SPEC, "model": "/sax/test/llama", "replicas": 3}
    stale = await http.put("/update", json={**spec, "revision": 6})
    assert stale.status_code == 409
    assert "revision 7" in stale.json()["detail"]
    fresh = await http.put("/update", json={**spec, "revision": 7})
    assert fresh.json() == {**spec, "revision": 7}


async def test_a_rollback_tells_the_version(http: httpx.AsyncClient):
    answer = await http.post("/rollback", json={"model": "/sax/test/llama"})
    assert answer.json() == {"model": "/sax/test/llama", "version": "0" * 32}
    named = {"model": "/sax/test/llama", "version": "ab" * 16}
    assert (await http.post("/rollback", json=named)).json() == named


async def test_a_change_of_weights_is_passed_on_and_the_replicas_are_told(
    http: httpx.AsyncClient, cell: FakeCell
):
    asked = {"model": "/sax/test/llama", "checkpoint": "/two", "version": "7", "mode": "keep"}
    answer = await http.post("/weights", json={**asked, "partial": True})
    replica = {"address": "10.0.0.1:10001", "version": "7", "state": "serving", "error": ""}
    assert answer.json() == {"model": "/sax/test/llama", "replicas": [replica]}
    change = cell.weight_changes.pop()
    assert (change.action, change.source, change.pausing) == ("update", "/two", "keep")
    assert change.partial


async def test_a_canary_is_started_listed_and_promoted_or_aborted(http: httpx.AsyncClient):
    model = {"model": "/sax/test/llama"}
    started = await http.post("/canary", json={**model, "percent": 10, "overrides": {"A": 1}})
    assert started.json() == {**model, "percent": 10}
    listed = (await http.get("/listcell", params=model)).json()
    assert listed["canary"] == {
        "version": "c" * 32,
        "checkpoint": "None",
        "overrides": {"A": "1"},
        "percent": 10,
        "ready_replicas": 0,
    }
    assert (await http.post("/promote", json=model)).json() == {**model, "version": "c" * 32}
    assert "canary" not in (await http.get("/listcell", params=model)).json()
    assert (await http.post("/abort", json=model)).status_code == 400
    assert (await http.post("/canary", json={**model, "percent": 2.5})).is_success
    assert (await http.post("/abort", json=model)).json() == {**model, "version": "c" * 32}
    whole = await http.post("/canary", json={**model, "percent": 100})
    assert whole.status_code == 400
    assert "sax promote" in whole.text


async def test_events_are_told_by_page(http: httpx.AsyncClient):
    answer = await http.get("/events", params={"model": "/sax/test/llama", "before": 8, "limit": 2})
    assert [one["sequence"] for one in answer.json()] == [7, 6]


STRANGE = [
    ("POST", "/publish", {**SPEC, "ttl": 1}, "ttl"),
    ("POST", "/publish", {**SPEC, "model": 5}, "model"),
    ("POST", "/publish", {**SPEC, "model_path": None}, "model_path"),
    ("POST", "/publish", {**SPEC, "checkpoint": ["a"]}, "checkpoint"),
    ("POST", "/publish", {**SPEC, "replicas": True}, "replicas"),
    ("POST", "/publish", {**SPEC, "replicas": -1}, "replicas"),
    ("POST", "/publish", {**SPEC, "replicas": 2**31}, "replicas"),
    ("POST", "/publish", {**SPEC, "overrides": {"A": "[" * 9999}}, "overrides"),
    ("POST", "/publish", {**SPEC, "overrides": "A=" + "[" * 9999}, "overrides"),
    ("POST", "/publish", {**SPEC, "overrides": 5}, "overrides"),
    ("POST", "/publish", {**SPEC, "revision": 1}, "revision"),
    ("PUT", "/update", {**SPEC, "revision": "7"}, "revision"),
    ("PUT", "/update", {**SPEC, "revision": 0}, "revision"),
    ("PUT", "/update", {**SPEC, "checkpiont": "/x"}, "checkpiont"),
    ("POST", "/unpublish", {"model": "/sax/test/llama", "force": True}, "force"),
    ("POST", "/unpublish", {}, "model"),
    ("POST", "/listcell", {"model": 1}, "model"),
    ("POST", "/listcell", {"modle": "/sax/test/llama"}, "model"),
    ("POST", "/listall", {"sax_cell": 1}, "sax_cell"),
    ("POST", "/listall", {"sax_cell": "/sax/test", "x": 1}, "x"),
    ("POST", "/rollback", {"model": "/sax/test/llama", "version": "latest"}, "version"),
    ("POST", "/rollback", {"model": "/sax/test/llama", "to": "x"}, "to"),
    ("POST", "/weights", {"model": "/sax/test/llama", "action": "melt"}, "action"),
    ("POST", "/weights", {"model": "/sax/test/llama", "mode": "later"}, "mode"),
    ("POST", "/canary", {"model": "/sax/test/llama"}, "percent"),
    ("POST", "/canary", {"model": "/sax/test/llama", "percent": "10%"}, "percent"),
    ("POST", "/canary", {"model": "/sax/test/llama", "percent": 0}, "percent"),
    ("POST", "/canary", {"model": "/sax/test/llama", "percent": 101}, "percent"),
    ("POST", "/canary", {"model": "/sax/test/llama", "percent": 5, "replicas": 2}, "replicas"),
    ("POST", "/promote", {"model": "/sax/test/llama", "percent": 5}, "percent"),
    ("POST", "/abort", {}, "model"),
    ("POST", "/generate", {"model": "/sax/test/llama", "query": 5}, "query"),
    ("POST", "/generate", {"model": "/sax/test/llama", "query": "x", "n": 2}, "n"),
    ("GET", "/events?limit=0", None, "limit"),
    ("GET", "/events?limit=x", None, "limit"),
    ("GET", "/events?before=-1", None, "before"),
    ("GET", "/events?since=1", None, "since"),
]


@each_case("verb, path, body, field", STRANGE)
async def test_every_route_names_the_field_it_refuses(
    verb: str, path: str, body: object, field: str, cell: FakeCell, http: httpx.AsyncClient
):
    before = dict(cell.models)
    answer = await http.request(verb, path, json=body)
    assert answer.status_code == 422
    assert ["body", field] in [line["loc"][:2] for line in answer.json()["detail"]]
    assert cell.models == before


async def test_autoscaling_is_published_updated_and_ended(cell: FakeCell, http: httpx.AsyncClient):
    bounds = {"min_replicas": 0, "max_replicas": 4, "target_queue": 2.5}
    answer = await http.post("/publish", json={**SPEC, **bounds})
    assert answer.json() == {**SPEC, **bounds}
    assert cell.models[SPEC["model"]].spec.autoscaling == Autoscaling(
        min_replicas=0, max_replicas=4, target_queue=2.5
    )
    listed = (await http.request("GET", "/listcell", json={"model": SPEC["model"]})).json()
    assert listed["max_replicas"] == 4
    answer = await http.put("/update", json={**SPEC, "max_replicas": 8})
    assert answer.json() == {**SPEC, "max_replicas": 8}
    assert cell.models[SPEC["model"]].spec.autoscaling == Autoscaling(
        min_replicas=0, max_replicas=8, target_queue=2.5
    )
    assert (await http.put("/update", json=SPEC)).json() == SPEC
    assert cell.models[SPEC["model"]].spec.autoscaling is not None
    answer = await http.put("/update", json={**SPEC, "max_replicas": None})
    assert answer.status_code == 200
    assert cell.models[SPEC["model"]].spec.autoscaling is None


async def test_the_end_of_autoscaling_goes_with_no_other_word_on_it(http: httpx.AsyncClient):
    answer = await http.post("/publish", json={**SPEC, "max_replicas": None, "min_replicas": 1})
    assert answer.status_code == 400
    assert "turns autoscaling off" in answer.json()["detail"]


@each_case(
    "field, value",
    [
        ("min_replicas", -1),
        ("min_replicas", "1"),
        ("min_replicas", True),
        ("max_replicas", 0),
        ("max_replicas", 1.5),
        ("max_replicas", 2**31),
        ("target_queue", 0),
        ("target_queue", "2"),
    ],
)
async def test_a_wrong_bound_is_a_422_that_names_it(
    field: str, value: object, http: httpx.AsyncClient
):
    answer = await http.post("/publish", json={**SPEC, field: value})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", field]
