"""Requests with a common prefix meet at one replica, which has computed it already."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.end_to_end.cell import Cell
from tests.end_to_end.small_model import MODEL, PATH, SMALL

CONVERSATIONS = 12
# Pages for all at either: by their ports they may all be at home at one of the replicas.
OVERRIDES = {**SMALL, "INPUT_SEQ_LEN": 1024, "NUM_CACHE_SLOTS": 16}


@pytest.fixture(scope="module")
def both(pair: Cell) -> Iterator[Cell]:
    """A replica of the small model on each server."""
    pair.publish("None", model=MODEL, model_path=PATH, replicas=2, overrides=OVERRIDES)
    pair.eventually(lambda: pair.ready_replicas(MODEL) == 2, "both are ready")
    yield pair
    pair.sax("unpublish", MODEL)


def hits(cell: Cell) -> list[float]:
    """Prompt tokens that each replica found in its prefix cache."""
    name = f'sax_prefix_cache_hits_total{{model="{MODEL}"}} '
    pages = [httpx.get(s.metrics_url, trust_env=False).text for s in cell.plan.model_servers]
    lines = (line for page in pages for line in page.splitlines())
    return [float(line.removeprefix(name)) for line in lines if line.startswith(name)]


def cached_share(cell: Cell, prompt: str) -> float:
    reply = cell.complete(prompt, model=MODEL, max_tokens=2)
    assert reply.status_code == 200, reply.text
    usage = reply.json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]


def test_every_turn_of_a_conversation_finds_the_one_before_at_its_replica(both: Cell) -> None:
    before = hits(both)
    talks = [f"{i} talks of the weather and of the wind. " * 12 for i in range(CONVERSATIONS)]
    for talk in talks:
        cached_share(both, talk)
    for turn in range(2):
        talks = [f"{talk} Turn {turn} asks what comes next." for talk in talks]
        shares = [cached_share(both, talk) for talk in talks]
        assert min(shares) > 0.4, shares  # whole pages only; the other replica has none
    found = [after - was for after, was in zip(hits(both), before, strict=True)]
    assert all(found), f"both replicas have conversations: {found}; {json.dumps(shares)}"
