"""Quantised weights and caches behind the same HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.cell import Cell

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


def test_a_wrong_kind_ends_in_words_that_name_the_right_ones(cell: Cell, gguf: Path) -> None:
    for override, says in (
        ('QUANTIZE="int3"', "int8"),
        ('QUANTIZE="int4:31"', "a multiple of 31"),
        ('KV_CACHE_DTYPE="int4"', "KV_CACHE_DTYPE"),
    ):
        result = cell.sax("publish", MODEL, "llama", str(gguf), "1", override, "--wait")
        cell.sax("unpublish", MODEL)
        assert result.returncode == 1, override
        assert says in result.stderr, override
        assert "Traceback" not in result.stderr
