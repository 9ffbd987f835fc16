"""A model that nobody asks for is unloaded, and the next request brings it back and is answered."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from sax.client import Client
from tests.end_to_end.cell import Cell
from tests.end_to_end.small_model import PATH, WORDS

SLEEPER = "/sax/test/sleeper"


@pytest.fixture(scope="module")
def sleepy(guarded: Cell) -> Iterator[Cell]:
    """The cell with a model that may be at zero."""
    bounds = ("--min-replicas", "0", "--max-replicas", "2", "--target-queue", "4")
    result = guarded.sax("publish", SLEEPER, PATH, "None", "1", *WORDS, *bounds, "--wait")
    assert result.returncode == 0, f"{result.stderr}\n{guarded.logs()}"
    yield guarded
    guarded.sax("unpublish", SLEEPER)


def until_asleep(cell: Cell) -> None:
    with Client(cell.plan.admin_address) as client:

        def asleep() -> bool:
            # Both: a request held a moment ago may have woken it, and it is not loaded yet.
            held = [each.model_id for server in client.servers() for each in server.servables]
            return SLEEPER not in held and client.list(SLEEPER).wanted == 0

        cell.eventually(asleep, "the model is unloaded")


def test_an_idle_model_is_unloaded_and_a_request_wakes_it_and_is_answered(sleepy: Cell) -> None:
    until_asleep(sleepy)
    assert sleepy.listed(SLEEPER)["scaling_reason"] == "no request for 3 s: 0 wanted"
    assert "scaled to zero" in sleepy.sax("ls").stdout
    assert SLEEPER in sleepy.http.get("/readyz").json()["models"]
    # By a client that is there already: three seconds later another reason counts.
    with Client(sleepy.plan.admin_address) as client:
        assert client.list(SLEEPER).scaling_reason == "no request for 3 s: 0 wanted"
        assert sleepy.text("x", model=SLEEPER, max_tokens=2) is not None
        assert "held at gateways" in client.list(SLEEPER).scaling_reason


@pytest.mark.nightly
def test_saxmls_route_and_a_stream_wake_it_too(sleepy: Cell) -> None:
    until_asleep(sleepy)
    query = {"model": SLEEPER, "query": "x", "extra_inputs": None}
    assert sleepy.http.post("/generate", json=query).status_code == 200
    until_asleep(sleepy)
    body = {"model": SLEEPER, "prompt": "x", "max_tokens": 2, "stream": True}
    with sleepy.http.stream("POST", "/v1/completions", json=body) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_a_client_that_goes_away_is_not_waited_for(sleepy: Cell) -> None:
    until_asleep(sleepy)
    with pytest.raises(httpx.ReadTimeout):
        sleepy.http.post("/v1/completions", json={"model": SLEEPER, "prompt": "x"}, timeout=0.2)
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
