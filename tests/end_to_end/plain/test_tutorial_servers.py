"""The HTTP servers of Saxml's tutorials on our calls, in a cell with our gateway of the same kind.

Each curl of the tutorial gets from the one what it gets from the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.cell import Cell, local_plan
from tests.end_to_end.conftest import FLAGS
from tests.end_to_end.tutorial_reader import curl
from tests.sax.saxml.tutorial_servers.running import running

MODEL = "/sax/test/tutorial"
QUESTION = "How many days are in a week?"
GREEDY = {
    "temperature": 0,
    "per_example_max_decode_steps": 24,
    "per_example_top_k": 200,
    "per_example_top_p": 0.95,
}


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.nightly), 2])
def generation(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def beside(
    request: pytest.FixtureRequest, generation: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cell]:
    """A cell whose gateway is of this generation."""
    if generation == 2:
        yield request.getfixturevalue("cell")
        return
    plan = local_plan(tmp_path_factory.mktemp("cell"), *FLAGS, saxml_generation=generation)
    with Cell(plan) as cell:
        yield cell


@pytest.fixture(scope="module")
def port(beside: Cell, generation: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    packages = tmp_path_factory.mktemp("packages")
    with running(generation, beside.plan.admin_address, packages) as chosen:
        yield chosen


def test_every_curl_of_the_tutorial_gets_what_our_gateway_gives(
    beside: Cell, port: int, generation: int, gguf: Path
) -> None:
    theirs = partial(curl, "127.0.0.1", port)
    ours = partial(curl, "127.0.0.1", beside.plan.gateway_port)
    new = {"model": MODEL, "model_path": "llama", "checkpoint": str(gguf), "replicas": "1"}
    name = {"model": MODEL}
    published = theirs("POST", "publish", new)
    _ready(beside)
    assert json.loads(theirs("GET", "listcell", name))["active_replicas"] == 1
    assert theirs("GET", "listcell", name) == ours("GET", "listcell", name)

    if generation == 1:  # it asks as its model's publisher chose, by chance unless told otherwise
        words = ("--override", "TEMPERATURE=0", "--override", "MAX_DECODE_STEPS=24", "--wait")
        greedy = beside.sax("update", MODEL, *words)
        assert greedy.returncode == 0, greedy.stderr
    extra = {} if generation == 1 else {"extra_inputs": GREEDY}
    query = {**name, "query": QUESTION, **extra}
    [[text, score]], [[same, nearly]] = (
        _answers(ask("POST", "generate", query), generation) for ask in (theirs, ours)
    )
    assert text == same
    assert "seven" in text.lower() or "7" in text
    assert score == pytest.approx(nearly, rel=1e-4)

    gone = theirs("POST", "unpublish", name)
    beside.eventually(lambda: "active_replicas" not in ours("GET", "listcell", name), "it is gone")
    assert published == ours("POST", "publish", new)
    assert gone == ours("POST", "unpublish", name)


def test_an_error_of_the_cell_is_told_by_the_tutorials_server_too(
    port: int, generation: int
) -> None:
    told = curl("127.0.0.1", port, "GET", "listcell", {"model": "/sax/test/nosuch"})
    assert "/sax/test/nosuch" in json.loads(told)["Error" if generation == 1 else "detail"]


def _ready(cell: Cell) -> None:
    waited = cell.sax("wait", MODEL)
    assert waited.returncode == 0, f"{waited.stderr}\n{cell.logs()}"


def _answers(body: str, generation: int) -> list[Any]:
    reply = json.loads(body)
    return reply["generate_response"] if generation == 1 else reply
