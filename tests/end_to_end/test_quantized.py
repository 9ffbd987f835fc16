"""Quantised weights and caches, and a mesh of several devices, behind the same HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.cell import MODEL_SERVER, Cell, local_plan
from tests.end_to_end.conftest import FLAGS
from tests.end_to_end.test_formats import CASE

pytestmark = pytest.mark.timeout(900)

MODEL = "/sax/test/quantized"
ASKED = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.mark.nightly  # a minute each; the README's commands serve an int8 model in every run
@pytest.mark.parametrize(
    "overrides",
    [
        {"QUANTIZE": "stored"},
        {"QUANTIZE": "int8", "KV_CACHE_DTYPE": "int8"},
        {"QUANTIZE": "int4:32"},
    ],
    ids=lambda overrides: " ".join(overrides.values()),
)
def test_a_quantised_model_still_knows_its_capitals(
    cell: Cell, gguf: Path, overrides: dict[str, str]
) -> None:
    cell.publish(str(gguf), model=MODEL, overrides=overrides)
    try:
        body: dict[str, Any] = {"model": MODEL, "messages": ASKED, "temperature": 0}
        reply = cell.http.post("/v1/chat/completions", json={**body, "max_tokens": 16}).json()
        assert "Paris" in reply["choices"][0]["message"]["content"]
        listed = cell.listed(MODEL)["spec"]["overrides"]
        assert listed == {key: json.dumps(value) for key, value in overrides.items()}
    finally:
        cell.sax("unpublish", MODEL)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ('QUANTIZE="int3"', "int8"),
        ('QUANTIZE="int4:31"', "a multiple of 31"),
        ('KV_CACHE_DTYPE="int4"', "KV_CACHE_DTYPE"),
    ],
)
def test_a_wrong_kind_ends_in_words_that_name_the_right_ones(
    cell: Cell, gguf: Path, override: str, says: str
) -> None:
    result = cell.sax("publish", MODEL, "llama", str(gguf), "1", override, "--wait")
    cell.sax("unpublish", MODEL)
    assert result.returncode == 1
    assert says in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.nightly  # a minute; meshes of every family are compared in tests/model_server/models
def test_four_devices_give_the_references_text(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "4")
    monkeypatch.setenv("NPROC", "16")  # threads for four devices that wait for each other
    with Cell(local_plan(tmp_path, *FLAGS)) as wide:
        wide.publish(str(gguf), overrides={"DTYPE": "float32"})
        assert wide.text(CASE["prompt"], max_tokens=len(CASE["ids"])) == CASE["text"]
        assert "'model': 4" in wide.log(MODEL_SERVER)
