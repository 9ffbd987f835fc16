"""The four commands of Saxml's tutorial, word for word but for the address and the model.

In a cell of its own that compiles few programs: the one cell of the quick tests.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.end_to_end.cell import Cell, local_plan
from tests.end_to_end.tutorial_reader import curl_of

MODEL = "/sax/test/tutorial"
FLAGS = ("--slots=2", "--max_context=256")


def test_publish_list_generate_and_unpublish_by_curl(gguf: Path, tmp_path: Path) -> None:
    with Cell(local_plan(tmp_path / "cell", *FLAGS)) as cell:
        follow(cell, gguf)


def follow(cell: Cell, gguf: Path) -> None:
    publication = {"model": MODEL, "model_path": "llama", "checkpoint": str(gguf), "replicas": "1"}
    published = curl_of(cell.plan, "POST", "publish", publication)
    assert published == json.dumps({**publication, "replicas": 1}, indent=4)

    def ready() -> bool:
        listed = json.loads(curl_of(cell.plan, "GET", "listcell", {"model": MODEL}))
        return listed["active_replicas"] == 1

    assert cell.http.get("/healthz").status_code == 200
    cell.eventually(ready, "active_replicas is 1")
    assert cell.http.get("/readyz").status_code == 200
    wanted = {
        "model": MODEL,
        "model_path": "llama",
        "checkpoint": str(gguf),
        "max_replicas": 1,
        "active_replicas": 1,
    }
    listed = curl_of(cell.plan, "GET", "listcell", {"model": MODEL})
    assert listed == json.dumps(wanted, indent=4)
    assert MODEL in json.loads(curl_of(cell.plan, "GET", "listall", {"sax_cell": "/sax/test"}))

    query = {"model": MODEL, "query": "How many days are in a week?"}
    answers = json.loads(curl_of(cell.plan, "POST", "generate", query))
    assert answers
    assert all(isinstance(score, float) for _, score in answers)
    # Left alone the route samples at Saxml's temperature of 0.5; greedy text can be judged.
    greedy = {**query, "extra_inputs": {"temperature": 0, "per_example_max_decode_steps": 48}}
    [[text, score]] = json.loads(curl_of(cell.plan, "POST", "generate", greedy))
    assert "seven" in text.lower() or "7" in text
    assert score < 0

    gone = curl_of(cell.plan, "POST", "unpublish", {"model": MODEL})
    assert gone == json.dumps({"model": MODEL}, indent=4)
    assert cell.http.request("GET", "/listcell", json={"model": MODEL}).status_code == 404
