"""Greedy text over HTTP equals the reference's (made by tests/golden/make_smollm2.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.demo_model import ROOT
from tests.end_to_end.cell import SMOLLM2, Cell

pytestmark = pytest.mark.timeout(600)

CASES: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "golden" / "smollm2_greedy.json").read_text()
)["cases"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_greedy_text_is_that_of_the_reference(served: Cell, case: dict[str, Any]) -> None:
    ids = case["ids"]
    body: dict[str, Any] = {"model": SMOLLM2, "temperature": 0, "max_tokens": len(ids)}
    if case["messages"] is None:
        reply = served.http.post("/v1/completions", json={**body, "prompt": case["prompt"]}).json()
        text = reply["choices"][0]["text"]
    else:
        chat = {**body, "messages": case["messages"]}
        reply = served.http.post("/v1/chat/completions", json=chat).json()
        text = reply["choices"][0]["message"]["content"]
    assert text == case["text"]
    assert reply["choices"][0]["finish_reason"] == case["finish"]
    assert reply["usage"]["prompt_tokens"] == len(case["prompt_ids"])
    assert reply["usage"]["completion_tokens"] == len(ids)


@pytest.mark.parametrize("name", [case["name"] for case in CASES if case["messages"] is None])
def test_the_command_line_gives_the_same_text(served: Cell, name: str) -> None:
    case = next(case for case in CASES if case["name"] == name)
    limit = str(len(case["ids"]))
    result = served.sax("generate", SMOLLM2, "-", "--max-tokens", limit, stdin=case["prompt"])
    assert result.stdout == case["text"] + "\n"
