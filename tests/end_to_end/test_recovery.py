"""kill -9 of any process, then a restart: nothing acknowledged is lost, the model serves again."""

from __future__ import annotations

import httpx
import pytest

from tests.end_to_end.cell import ADMIN, GATEWAY, MODEL_SERVER, SMOLLM2, Cell

pytestmark = pytest.mark.timeout(900)

PROMPT = "The three primary colours are"


def answers(cell: Cell) -> str | None:
    """The greedy text, None while it cannot be had."""
    try:
        response = cell.complete(PROMPT)
    except httpx.TransportError:
        return None
    text: str | None = response.json()["choices"][0]["text"] if response.is_success else None
    return text


@pytest.mark.smoke
def test_a_killed_admin_loses_nothing_and_stops_no_request(served: Cell) -> None:
    before = served.text(PROMPT)
    published = served.sax("publish", "/sax/test/kept", "llama", "None", "0")
    served.kill(ADMIN)
    assert published.returncode == 0, published.stderr
    assert served.text(PROMPT) == before, "the admin is not on the request path"
    served.start(ADMIN)
    served.eventually(served.joined, "the model server has joined again")
    served.eventually(
        lambda: served.listed()["ready_replicas"] == 1, "the replica is known to be ready"
    )
    assert served.listed("/sax/test/kept")["spec"]["replicas"] == 0
    assert served.text(PROMPT) == before
    assert served.sax("unpublish", "/sax/test/kept").returncode == 0


def test_a_killed_admin_does_not_bring_back_what_was_unpublished(served: Cell) -> None:
    assert served.sax("publish", "/sax/test/gone", "llama", "None", "0").returncode == 0
    assert served.sax("unpublish", "/sax/test/gone").returncode == 0
    served.kill(ADMIN)
    served.start(ADMIN)
    served.eventually(served.joined, "the model server has joined again")
    listed = served.sax("ls", "/sax/test/gone")
    assert listed.returncode == 1
    assert "/sax/test/gone" in listed.stderr
    served.eventually(lambda: answers(served), "the model serves")


def test_a_killed_model_server_loads_its_model_again(served: Cell) -> None:
    before = served.text(PROMPT)
    served.kill(MODEL_SERVER)
    served.start(MODEL_SERVER)
    served.eventually(lambda: answers(served) == before, "the model serves the same text")


def test_a_killed_gateway_serves_again(served: Cell) -> None:
    before = served.text(PROMPT)
    served.kill(GATEWAY)
    served.start(GATEWAY)
    served.eventually(lambda: answers(served) == before, "the model serves the same text")


def test_every_process_drains_on_sigterm_and_exits_0(served: Cell) -> None:
    for name in (GATEWAY, MODEL_SERVER, ADMIN):
        assert served.stop(name) == 0, served.log(name)
    for name in (ADMIN, MODEL_SERVER, GATEWAY):
        served.start(name)
    served.wait_until_up()
    served.eventually(lambda: answers(served), "the model serves")
    assert served.listed(SMOLLM2)["ready_replicas"] == 1
