"""Both HTTP servers of Saxml's tutorials, on our calls, against a cell on real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sax.client.test_blocking_client import Cell
from tests.sax.conftest import MODEL
from tests.sax.saxml.tutorial_servers.running import running

NEW = {"model": "/sax/test/new", "model_path": "llama", "checkpoint": "None", "replicas": 2}


@contextmanager
def serving(generation: int, cell: Cell, packages: Path) -> Iterator[httpx.Client]:
    with (
        running(generation, cell.admin.address, packages) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client


@pytest.fixture
def one(cell: Cell, tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(1, cell, tmp_path) as client:
        yield client


@pytest.fixture
def two(cell: Cell, tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(2, cell, tmp_path) as client:
        yield client


def asked(client: httpx.Client, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    answer = client.request(method, path, json=body)
    return answer.status_code, answer.json()


def test_the_first_generation_runs_on_our_calls(one: httpx.Client, cell: Cell) -> None:
    assert asked(one, "GET", "/") == (200, {"message": "HTTP Server for SAX Client"})
    told = {"model": NEW["model"], "path": "llama", "checkpoint": "None", "replicas": 2}
    assert asked(one, "POST", "/publish", NEW | {"replicas": "2"}) == (200, told)
    assert asked(one, "PUT", "/update", NEW | {"replicas": 3}) == (200, told | {"replicas": 3})
    assert asked(one, "GET", "/listcell", {"model": MODEL}) == (
        200,
        {
            "model": MODEL,
            "model_path": "counter",
            "checkpoint": "None",
            "max_replicas": 1,
            "active_replicas": 1,
        },
    )
    query = {"model": MODEL, "query": "abc"}
    assert asked(one, "POST", "/generate", query) == (200, {"generate_response": [["cba", -1.5]]})
    assert asked(one, "POST", "/unpublish", {"model": NEW["model"]})[0] == 200
    assert NEW["model"] not in cell.admin.models


def test_the_first_generation_tells_our_errors(one: httpx.Client) -> None:
    status, told = asked(one, "GET", "/listcell", {"model": "/sax/test/nosuch"})
    assert status == 400
    assert "/sax/test/nosuch" in told["Error"]
    assert asked(one, "POST", "/generate", {"model": MODEL})[0] == 400


@pytest.mark.extended
def test_the_second_generation_runs_by_saxmls_import_path(two: httpx.Client, cell: Cell) -> None:
    assert asked(two, "POST", "/publish", NEW | {"overrides": "A=1"}) == (
        200,
        NEW | {"overrides": {"A": "1"}},
    )
    assert asked(two, "GET", "/listall", {"sax_cell": "/sax/test"}) == (200, [MODEL, NEW["model"]])
    assert asked(two, "PUT", "/update", NEW | {"replicas": 1})[0] == 200
    assert asked(two, "GET", "/listcell", {"model": MODEL})[1]["active_replicas"] == 1
    query = {"model": MODEL, "query": "abc"}
    assert asked(two, "POST", "/generate", query) == (200, [["cba", -1.5]])
    assert dict(cell.replica.extra.items) == pytest.approx(
        {
            "temperature": 0.5,
            "per_example_max_decode_steps": 128,
            "per_example_top_k": 200,
            "per_example_top_p": 0.95,
        }
    )
    asked(two, "POST", "/generate", query | {"extra_inputs": None})
    assert not cell.replica.extra.items
    assert asked(two, "POST", "/unpublish", {"model": NEW["model"]})[0] == 200


@pytest.mark.extended
def test_the_second_generation_tells_our_errors(two: httpx.Client) -> None:
    status, told = asked(two, "POST", "/generate", {"model": "/sax/test/nosuch", "query": "a"})
    assert status == 500
    assert "/sax/test/nosuch" in told["detail"]
