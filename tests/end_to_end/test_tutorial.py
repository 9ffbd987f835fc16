"""The four commands of Saxml's tutorial, word for word but for the address and the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sax.cli.local.cell_plan import CellPlan
from tests.end_to_end import tutorial_reader
from tests.end_to_end.cell import Cell

pytestmark = pytest.mark.timeout(600)

MODEL = "/sax/test/tutorial"


def curl(plan: CellPlan, method: str, route: str, data: object) -> str:
    return tutorial_reader.curl(plan.gateway_host, plan.gateway_port, method, route, data)


@pytest.fixture
def unpublished(cell: Cell) -> Iterator[None]:
    yield
    cell.sax("unpublish", MODEL)


@pytest.mark.smoke
@pytest.mark.usefixtures("unpublished")
def test_publish_list_generate_and_unpublish_by_curl(cell: Cell, gguf: Path) -> None:
    publication = {"model": MODEL, "model_path": "llama", "checkpoint": str(gguf), "replicas": "1"}
    published = curl(cell.plan, "POST", "publish", publication)
    assert published == json.dumps({**publication, "replicas": 1}, indent=4)

    def ready() -> bool:
        listed = json.loads(curl(cell.plan, "GET", "listcell", {"model": MODEL}))
        return listed["active_replicas"] == 1

    cell.eventually(ready, "active_replicas is 1")
    wanted = {
        "model": MODEL,
        "model_path": "llama",
        "checkpoint": str(gguf),
        "max_replicas": 1,
        "active_replicas": 1,
    }
    listed = curl(cell.plan, "GET", "listcell", {"model": MODEL})
    assert listed == json.dumps(wanted, indent=4)
    assert MODEL in json.loads(curl(cell.plan, "GET", "listall", {"sax_cell": "/sax/test"}))

    query = {"model": MODEL, "query": "How many days are in a week?"}
    answers = json.loads(curl(cell.plan, "POST", "generate", query))
    assert answers
    assert all(isinstance(score, float) for _, score in answers)
    # Left alone the route samples at Saxml's temperature of 0.5; greedy text can be judged.
    greedy = {**query, "extra_inputs": {"temperature": 0, "per_example_max_decode_steps": 48}}
    [[text, score]] = json.loads(curl(cell.plan, "POST", "generate", greedy))
    assert "seven" in text.lower() or "7" in text
    assert score < 0

    gone = curl(cell.plan, "POST", "unpublish", {"model": MODEL})
    assert gone == json.dumps({"model": MODEL}, indent=4)
    assert cell.http.request("GET", "/listcell", json={"model": MODEL}).status_code == 404


def test_readyz_tells_whether_a_model_is_ready(served: Cell) -> None:
    assert served.http.get("/readyz").status_code == 200
    assert served.http.get("/healthz").status_code == 200
