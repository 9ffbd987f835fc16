"""Greedy text over HTTP equals the reference's (made by tests/golden/make_smollm2.py)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.demo_model import ROOT
from tests.end_to_end.cell import SMOLLM2, Cell


def cases() -> list[dict[str, Any]]:
    return json.loads((ROOT / "tests" / "golden" / "smollm2_greedy.json").read_text())["cases"]


def answer(cell: Cell, case: dict[str, Any]) -> dict[str, Any]:
    """What the case expects, as the cell tells it."""
    body: dict[str, Any] = {"model": SMOLLM2, "temperature": 0, "max_tokens": len(case["ids"])}
    if case["messages"] is None:
        reply = cell.http.post("/v1/completions", json={**body, "prompt": case["prompt"]}).json()
        text = reply["choices"][0]["text"]
    else:
        chat = {**body, "messages": case["messages"]}
        reply = cell.http.post("/v1/chat/completions", json=chat).json()
        text = reply["choices"][0]["message"]["content"]
    usage = reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]
    return {"text": text, "finish": reply["choices"][0]["finish_reason"], "usage": usage}


def test_greedy_texts_are_those_of_the_reference(twice: Cell) -> None:
    """Asked all at once, of both replicas."""
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda case: answer(twice, case), cases()))
    wanted = [
        {
            "text": case["text"],
            "finish": case["finish"],
            "usage": (len(case["prompt_ids"]), len(case["ids"])),
        }
        for case in cases()
    ]
    assert found == wanted


@pytest.mark.parametrize("place", [0, pytest.param(slice(1, None), marks=pytest.mark.nightly)])
def test_the_command_line_gives_the_same_text(twice: Cell, place: int | slice) -> None:
    prompts = [case for case in cases() if case["messages"] is None]
    for case in prompts[place] if isinstance(place, slice) else [prompts[place]]:
        limit = str(len(case["ids"]))
        result = twice.sax("generate", SMOLLM2, "-", "--max-tokens", limit, stdin=case["prompt"])
        assert result.stdout == case["text"] + "\n"
