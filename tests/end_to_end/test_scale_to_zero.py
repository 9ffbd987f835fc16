"""A model that nobody asks for is unloaded, and the next request brings it back and is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from sax.client import Client
from tests.end_to_end.cell import Cell, local_plan
from tests.end_to_end.test_random_weights import MODEL, PATH, SMALL

pytestmark = pytest.mark.timeout(600)

WORDS = [f"{key}={json.dumps(value)}" for key, value in SMALL.items()]


@pytest.fixture(scope="module")
def sleepy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """A cell whose models are idle after three seconds, with one that may be at zero."""
    plan = local_plan(tmp_path_factory.mktemp("sleepy"), "--slots=1")
    with Cell(replace(plan, admin_flags=("--scale_idle_s=3",))) as cell:
        bounds = ("--min-replicas", "0", "--max-replicas", "2", "--target-queue", "4")
        result = cell.sax("publish", MODEL, PATH, "None", "1", *WORDS, *bounds, "--wait")
        assert result.returncode == 0, f"{result.stderr}\n{cell.logs()}"
        yield cell


def until_asleep(cell: Cell) -> None:
    # Both: a request that was held a moment ago may have woken it, and it is not loaded yet.
    cell.eventually(
        lambda: not held(cell) and cell.listed(MODEL)["wanted"] == 0, "the model is unloaded"
    )


def held(cell: Cell) -> list[str]:
    """The models that the server has, whatever their status."""
    servers = json.loads(cell.sax("status", "--json").stdout)["servers"]
    return [each["model_id"] for server in servers for each in server["servables"]]


def test_an_idle_model_is_unloaded_and_the_reason_is_shown(sleepy: Cell) -> None:
    until_asleep(sleepy)
    assert sleepy.listed(MODEL)["scaling_reason"] == "no request for 3 s: 0 wanted"
    assert "scaled to zero" in sleepy.sax("ls").stdout
    assert sleepy.http.get("/readyz").status_code == 200


def test_a_request_wakes_the_model_and_is_answered(sleepy: Cell) -> None:
    until_asleep(sleepy)
    # By a client that is there already: three seconds later another reason counts.
    with Client(sleepy.plan.admin_address) as client:
        assert client.list(MODEL).scaling_reason == "no request for 3 s: 0 wanted"
        assert sleepy.text("x", model=MODEL, max_tokens=2) is not None
        assert "held at gateways" in client.list(MODEL).scaling_reason


@pytest.mark.nightly
def test_saxmls_route_and_a_stream_wake_it_too(sleepy: Cell) -> None:
    until_asleep(sleepy)
    query = {"model": MODEL, "query": "x", "extra_inputs": None}
    assert sleepy.http.post("/generate", json=query).status_code == 200
    until_asleep(sleepy)
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2, "stream": True}
    with sleepy.http.stream("POST", "/v1/completions", json=body) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_a_client_that_goes_away_is_not_waited_for(sleepy: Cell) -> None:
    until_asleep(sleepy)
    with pytest.raises(httpx.ReadTimeout):
        sleepy.http.post("/v1/completions", json={"model": MODEL, "prompt": "x"}, timeout=0.2)
    until_asleep(sleepy)


def test_a_model_that_cannot_be_loaded_says_so_to_who_asks(sleepy: Cell) -> None:
    name = "/sax/test/broken"
    bounds = ("--min-replicas", "0", "--max-replicas", "1")
    # Not refused when published: nobody looks into a checkpoint before a load.
    result = sleepy.sax("publish", name, PATH, "/nowhere/at/all", "0", *bounds)
    assert result.returncode == 0, result.stderr
    answer = sleepy.complete("x", model=name)
    assert answer.status_code == 503, answer.text
    assert "/nowhere/at/all" in answer.json()["error"]["message"]
    assert sleepy.sax("unpublish", name).returncode == 0
