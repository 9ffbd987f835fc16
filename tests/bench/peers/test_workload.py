"""Prompts of the race: as long as they say, and no two alike where no part is shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from tests.bench.peers.workload import WORKLOADS, Workload, one_token_words, prompts
from tests.demo_model import demo_model


@pytest.fixture(scope="module")
def words() -> list[str]:
    return one_token_words(demo_model())


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_prompt_has_exactly_its_tokens(workload: Workload, words: list[str]) -> None:
    tokenizer = GgufCheckpoint(Path(demo_model())).tokenizer()
    for prompt in prompts(words, workload, 3, "round 1"):
        assert len(tokenizer.encode(prompt)) == workload.prompt


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_streams_and_rounds_have_the_shared_words_in_common_and_no_more(
    workload: Workload, words: list[str]
) -> None:
    asked = [p for turn in range(2) for p in prompts(words, workload, 2, f"round {turn}")]
    split = [prompt.split() for prompt in asked]
    assert len({tuple(each[: workload.shared]) for each in split}) == 1
    assert len({tuple(each[workload.shared :][:16]) for each in split}) == 4


def test_prompts_are_the_same_in_every_race() -> None:
    words = ["one", "two", "three"]
    workload = Workload("", prompt=8, tokens=1, shared=4)
    assert prompts(words, workload, 2, "a") == prompts(words, workload, 2, "a")
    assert prompts(words, workload, 2, "a") != prompts(words, workload, 2, "b")
