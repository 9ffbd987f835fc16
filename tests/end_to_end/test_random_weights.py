"""Saxml's test models: random weights, shrunk by overrides. And what happens when all is full."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.end_to_end.cell import Cell, local_plan

pytestmark = pytest.mark.timeout(600)

MODEL = "/sax/test/spmd"
PATH = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
SMALL = {
    "NUM_LAYERS": 2,
    "MODEL_DIMS": 64,
    "HIDDEN_DIMS": 128,
    "NUM_HEADS": 2,
    "DIMS_PER_HEAD": 32,
    "VOCAB_SIZE": 512,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """A cell that is soon full: one slot, one place in the queue."""
    plan = local_plan(tmp_path_factory.mktemp("small"), "--slots=1", "--queue=1")
    with Cell(plan) as running:
        running.publish("None", model=MODEL, model_path=PATH, overrides=SMALL)
        yield running


def test_a_shrunken_test_model_generates_by_saxmls_route(small: Cell) -> None:
    query = {"model": MODEL, "query": "How many days are in a week?", "extra_inputs": None}
    response = small.http.post("/generate", json=query)
    assert response.status_code == 200, response.text
    answers = response.json()
    assert answers
    assert all(isinstance(text, str) and isinstance(score, float) for text, score in answers)


def test_the_overrides_are_listed(small: Cell) -> None:
    assert small.listed(MODEL)["spec"]["overrides"]["NUM_LAYERS"] == "2"
    assert "NUM_LAYERS=2" in small.sax("ls", MODEL).stdout


def test_a_class_of_token_ids_takes_and_gives_them_and_searches_with_beams(small: Cell) -> None:
    name, sizes = "/sax/test/ids", {**SMALL, "ROTARY_DIM": 16, "BATCH_SIZE": 1, "EOS_ID": 7}
    own = {"INPUT_SEQ_LEN": 64, "MAX_DECODE_STEPS": 8, "ICI_MESH_SHAPE": [1, 1, 1]}
    own["MIN_DECODE_STEPS"] = 2
    path = "saxml.server.pax.lm.params.gptj.GPTJ4TokenizedBF16BS32"
    words = [f"{key}={json.dumps(value)}" for key, value in {**sizes, **own}.items()]
    result = small.sax("publish", name, path, "None", "1", *words, "--wait")
    try:
        assert result.returncode == 0, result.stderr
        query = {"model": name, "query": "5,6,7", "extra_inputs": None}
        response = small.http.post("/generate", json=query)
        assert response.status_code == 200, response.text
        answers = response.json()
        assert len(answers) == 4, "as many as Saxml's class has beams"
        scores = [score for _, score in answers]
        assert scores == sorted(scores, reverse=True)
        for ids, score in answers:
            tokens = [int(token) for token in ids.split(",")]
            assert 3 <= len(tokens) <= 8
            assert tokens.index(7) == len(tokens) - 1, "each has ended"
            assert score < 0
        assert small.http.post("/generate", json=query).json() == answers
        refused = small.http.post("/generate", json={**query, "query": "five"})
        assert refused.status_code == 400
        assert "TOKENIZED_INPUT" in refused.text
    finally:
        small.sax("unpublish", name)


def test_an_unknown_override_is_refused_by_name(small: Cell) -> None:
    name = "/sax/test/odd"
    result = small.sax("publish", name, PATH, "None", "1", "NUM_LAYERZ=2", "--wait")
    small.sax("unpublish", name)
    assert result.returncode == 1
    assert "NUM_LAYERZ" in result.stderr


def test_a_full_queue_is_told_with_429_and_when_to_come_back(small: Cell) -> None:
    def ask(seed: int) -> tuple[int, str | None]:
        response = small.complete(
            "x", model=MODEL, max_tokens=100, temperature=1, seed=seed, ignore_eos=True
        )
        return response.status_code, response.headers.get("retry-after")

    with ThreadPoolExecutor(24) as pool:
        replies = list(pool.map(ask, range(24)))
    refused = [after for status, after in replies if status == 429]
    assert {status for status, _ in replies} == {200, 429}
    assert all(after is not None and int(after) >= 1 for after in refused)
    assert small.text("x", model=MODEL, max_tokens=2) is not None
