"""Generation 1, byte for byte."""

import httpx
import pytest

from sax.errors import ModelNotReady
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published

SPEC = {"model": "/sax/test/new", "model_path": "llama", "checkpoint": "None", "replicas": 1}
PUBLISH_HINT = "Provide model, model path, checkpoint, and replica number for "


async def test_publish_answers_path_instead_of_model_path(
    cell: FakeCell, http_1: httpx.AsyncClient
):
    answer = await http_1.post("/publish", json={**SPEC, "replicas": "1"})
    assert answer.status_code == 200
    assert "content-type" not in answer.headers
    assert answer.text == (
        '{\n    "model": "/sax/test/new",\n    "path": "llama",\n'
        '    "checkpoint": "None",\n    "replicas": 1\n}\n'
    )
    assert cell.models["/sax/test/new"].spec.model_path == "llama"


async def test_update_answers_path_instead_of_model_path(cell: FakeCell, http_1: httpx.AsyncClient):
    answer = await http_1.put("/update", json={**SPEC, "model": "/sax/test/llama", "replicas": 2})
    assert answer.text == (
        '{\n    "model": "/sax/test/llama",\n    "path": "llama",\n'
        '    "checkpoint": "None",\n    "replicas": 2\n}\n'
    )
    assert cell.models["/sax/test/llama"].spec.replicas == 2


async def test_unpublish_echoes_the_name(cell: FakeCell, http_1: httpx.AsyncClient):
    answer = await http_1.post("/unpublish", json={"model": "/sax/test/llama"})
    assert answer.text == '{\n    "model": "/sax/test/llama"\n}\n'
    assert list(cell.models) == ["/sax/test/smollm2"]


async def test_listcell_tells_wanted_and_ready_replicas(cell: FakeCell, http_1: httpx.AsyncClient):
    cell.models["/sax/test/m"] = published("/sax/test/m", ready=1, replicas=2)
    answer = await http_1.request("GET", "/listcell", json={"model": "/sax/test/m"})
    assert answer.text == (
        '{\n    "model": "/sax/test/m",\n    "model_path": "llama",\n'
        '    "checkpoint": "None",\n    "max_replicas": 2,\n    "active_replicas": 1\n}\n'
    )


async def test_generate_wraps_its_samples_and_uses_the_models_own_defaults(
    cell: FakeCell, http_1: httpx.AsyncClient
):
    answer = await http_1.post("/generate", json={"model": "/sax/test/llama", "query": "abc"})
    assert "content-type" not in answer.headers
    assert answer.text == (
        '{\n    "generate_response": [\n        [\n            "cba",\n            0.0\n'
        "        ]\n    ]\n}\n"
    )
    assert cell.saxml_requests == [("/sax/test/llama", "abc", None)]


@each_case(
    "verb, path, body, text",
    [
        ("GET", "/listcell", {}, "Provide model for list cell"),
        ("GET", "/listcell", {"model": "m", "x": 1}, "Provide model for list cell"),
        ("GET", "/listcell", ["model"], "Provide model for list cell"),
        ("POST", "/publish", {"model": "m"}, PUBLISH_HINT + "publish"),
        ("POST", "/publish", {**SPEC, "overrides": "A=1"}, PUBLISH_HINT + "publish"),
        ("PUT", "/update", {"model": "m"}, PUBLISH_HINT + "update"),
        ("POST", "/unpublish", {"name": "m"}, "Provide model for unpublish"),
        ("POST", "/generate", {"model": "m"}, "Provide model and query for generate"),
        (
            "POST",
            "/generate",
            {"model": "m", "query": "q", "extra_inputs": {}},
            "Provide model and query for generate",
        ),
    ],
)
async def test_a_body_needs_exactly_its_keys(
    verb: str, path: str, body: object, text: str, http_1: httpx.AsyncClient
):
    answer = await http_1.request(verb, path, json=body)
    assert (answer.status_code, answer.text) == (400, f'{{\n    "Error": "{text}"\n}}\n')


@each_case(
    "body, told",
    [
        ({**SPEC, "replicas": "many"}, "replicas: 'many'"),
        ({**SPEC, "replicas": True}, "replicas: True"),
        ({**SPEC, "replicas": -1}, "-1 replicas: use 0"),
        ({**SPEC, "replicas": 2**31}, "2147483648 replicas: use 0"),
        ({**SPEC, "model_path": 5}, "model_path: give a string"),
        ({**SPEC, "model": "/sax/test/llama"}, "published already"),
        ({**SPEC, "model": "llama"}, "not a model name"),
    ],
)
async def test_every_error_is_a_400_with_its_text(
    body: object, told: str, http_1: httpx.AsyncClient
):
    answer = await http_1.post("/publish", json=body)
    assert answer.status_code == 400
    assert list(answer.json()) == ["Error"]
    assert told in answer.json()["Error"]


async def test_malformed_json_is_answered_instead_of_dropped(http_1: httpx.AsyncClient):
    for body in (b"", b"{", b"\xff\xfe\xfa"):
        answer = await http_1.post("/publish", content=body)
        assert (answer.status_code, answer.json()["Error"][:20]) == (400, "the body is not JSON")


async def test_a_model_without_a_ready_replica_is_a_400_too(
    cell: FakeCell, http_1: httpx.AsyncClient
):
    cell.failure = ModelNotReady("no server of 8 chips")
    answer = await http_1.post("/generate", json={"model": "/sax/test/llama", "query": "q"})
    assert (answer.status_code, answer.json()) == (400, {"Error": "no server of 8 chips"})


@each_case(
    "verb, path",
    [("GET", "/nope"), ("GET", "/publish"), ("POST", "/listcell"), ("GET", "/listall")],
)
async def test_an_unknown_path_for_the_verb_is_an_invalid_request(
    verb: str, path: str, http_1: httpx.AsyncClient
):
    answer = await http_1.request(verb, path)
    assert answer.status_code == 400
    assert answer.text == '{\n    "message": "Invalid Request"\n}\n'


async def test_openais_routes_keep_their_own_errors(http_1: httpx.AsyncClient):
    answer = await http_1.post("/v1/completions", json={"model": "zzz", "prompt": "x"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "/sax/test/llama", "query": "\\ud800"}',
        b'{"model": "/sax/test/llama", "query": ' + b"[" * 99999,
        b'{"model": "/sax/test/llama", "query": ["x"]}',
    ],
)
async def test_what_is_no_text_is_refused(http_1: httpx.AsyncClient, body: bytes):
    answer = await http_1.post("/generate", content=body)
    assert answer.status_code == 400
    assert "internal" not in answer.text
