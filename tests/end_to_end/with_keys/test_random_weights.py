"""Saxml's test models: random weights, shrunk by overrides. And what happens when all is full."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from tests.end_to_end.cell import Cell
from tests.end_to_end.small_model import MODEL, PATH, SMALL


def test_a_shrunken_test_model_generates_by_saxmls_route_and_lists_its_overrides(
    guarded: Cell,
) -> None:
    query = {"model": MODEL, "query": "How many days are in a week?", "extra_inputs": None}
    response = guarded.http.post("/generate", json=query)
    assert response.status_code == 200, response.text
    answers = response.json()
    assert answers
    assert all(isinstance(text, str) and isinstance(score, float) for text, score in answers)
    assert guarded.listed(MODEL)["spec"]["overrides"]["NUM_LAYERS"] == "2"
    assert "NUM_LAYERS=2" in guarded.sax("ls", MODEL).stdout


def test_a_class_of_token_ids_takes_and_gives_them_and_searches_with_beams(guarded: Cell) -> None:
    name, sizes = "/sax/test/ids", {**SMALL, "ROTARY_DIM": 16, "BATCH_SIZE": 1, "EOS_ID": 7}
    own = {"INPUT_SEQ_LEN": 64, "MAX_DECODE_STEPS": 8, "ICI_MESH_SHAPE": [1, 1, 1]}
    own["MIN_DECODE_STEPS"] = 2
    path = "saxml.server.pax.lm.params.gptj.GPTJ4TokenizedBF16BS32"
    words = [f"{key}={json.dumps(value)}" for key, value in {**sizes, **own}.items()]
    result = guarded.sax("publish", name, path, "None", "1", *words, "--wait")
    try:
        assert result.returncode == 0, result.stderr
        query = {"model": name, "query": "5,6,7", "extra_inputs": None}
        response = guarded.http.post("/generate", json=query)
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
        assert guarded.http.post("/generate", json=query).json() == answers
        refused = guarded.http.post("/generate", json={**query, "query": "five"})
        assert refused.status_code == 400
        assert "TOKENIZED_INPUT" in refused.text
    finally:
        guarded.sax("unpublish", name)


def test_an_unknown_override_is_refused_by_name(guarded: Cell) -> None:
    name = "/sax/test/odd"
    result = guarded.sax("publish", name, PATH, "None", "1", "NUM_LAYERZ=2", "--wait")
    guarded.sax("unpublish", name)
    assert result.returncode == 1
    assert "NUM_LAYERZ" in result.stderr


def test_a_full_queue_is_told_with_429_and_when_to_come_back(guarded: Cell) -> None:
    def ask(seed: int) -> tuple[int, str | None]:
        response = guarded.complete(
            "x", model=MODEL, max_tokens=100, temperature=1, seed=seed, ignore_eos=True
        )
        return response.status_code, response.headers.get("retry-after")

    with ThreadPoolExecutor(24) as pool:
        replies = list(pool.map(ask, range(24)))
    refused = [after for status, after in replies if status == 429]
    assert {status for status, _ in replies} == {200, 429}
    assert all(after is not None and int(after) >= 1 for after in refused)
    assert guarded.text("x", model=MODEL, max_tokens=2) is not None
