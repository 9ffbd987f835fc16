"""Requests with a common prefix meet at one replica, which has computed it already."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.end_to_end.cell import Cell, local_plan
from tests.end_to_end.test_random_weights import MODEL, PATH, SMALL

pytestmark = pytest.mark.timeout(600)

CONVERSATIONS = 12
OVERRIDES = {**SMALL, "INPUT_SEQ_LEN": 1024}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """Two servers with a replica each."""
    # Pages for twelve conversations at either: by their ports all may be at home at one of them.
    flags = ("--slots=16", "--max_context=2048")
    with Cell(local_plan(tmp_path_factory.mktemp("pair"), *flags, servers=2)) as cell:
        cell.publish("None", model=MODEL, model_path=PATH, replicas=2, overrides=OVERRIDES)
        cell.eventually(lambda: cell.listed(MODEL)["ready_replicas"] == 2, "both are ready")
        yield cell


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


def test_every_turn_of_a_conversation_finds_the_one_before_at_its_replica(pair: Cell) -> None:
    before = hits(pair)
    talks = [f"{i} talks of the weather and of the wind. " * 12 for i in range(CONVERSATIONS)]
    for talk in talks:
        cached_share(pair, talk)
    for turn in range(2):
        talks = [f"{talk} Turn {turn} asks what comes next." for talk in talks]
        shares = [cached_share(pair, talk) for talk in talks]
        assert min(shares) > 0.4, shares  # whole pages only; the other replica has none
    found = [after - was for after, was in zip(hits(pair), before, strict=True)]
    assert all(found), f"both replicas have conversations: {found}; {json.dumps(shares)}"
