"""Greedy text over HTTP equals the reference's (made by `tests.tools.golden real smollm2`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.demo_model import ROOT
from tests.end_to_end.cell import Cell

EXACT = "/sax/test/smollm2-f32"
pytestmark = pytest.mark.timeout(600)

CASES: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "golden" / "smollm2_greedy.json").read_text()
)["cases"]


@pytest.fixture(scope="module")
def exact(cell: Cell, gguf: Path) -> Iterator[Cell]:
    """The demo model in float32, as the reference computed it: bfloat16 rounds ties elsewhere."""
    cell.publish(str(gguf), model=EXACT, overrides={"DTYPE": "float32"})
    yield cell
    cell.sax("unpublish", EXACT)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_greedy_text_is_that_of_the_reference(exact: Cell, case: dict[str, Any]) -> None:
    ids = case["ids"]
    body: dict[str, Any] = {"model": EXACT, "temperature": 0, "max_tokens": len(ids)}
    if case["messages"] is None:
        reply = exact.http.post("/v1/completions", json={**body, "prompt": case["prompt"]}).json()
        text = reply["choices"][0]["text"]
    else:
        chat = {**body, "messages": case["messages"]}
        reply = exact.http.post("/v1/chat/completions", json=chat).json()
        text = reply["choices"][0]["message"]["content"]
    assert text == case["text"]
    assert reply["choices"][0]["finish_reason"] == case["finish"]
    assert reply["usage"]["prompt_tokens"] == len(case["prompt_ids"])
    assert reply["usage"]["completion_tokens"] == len(ids)


PROMPTS = [case["name"] for case in CASES if case["messages"] is None]


@pytest.mark.parametrize(
    "name", [PROMPTS[0], *(pytest.param(name, marks=pytest.mark.nightly) for name in PROMPTS[1:])]
)
def test_the_command_line_gives_the_same_text(exact: Cell, name: str) -> None:
    case = next(case for case in CASES if case["name"] == name)
    limit = str(len(case["ids"]))
    result = exact.sax("generate", EXACT, "-", "--max-tokens", limit, stdin=case["prompt"])
    assert result.stdout == case["text"] + "\n"
