"""Workloads: as large as they are asked for, and the same again for the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from sax.cli.bench.load_plan import WORDS, RequestSizes, planned, poisson
from tests.demo_model import demo_model

SIZES = st.builds(
    RequestSizes,
    prompt=st.integers(1, 50),
    tokens=st.integers(1, 50),
    shared=st.integers(0, 30),
    prefixes=st.integers(1, 4),
    spread=st.floats(0, 1),
)


@given(SIZES, st.integers(0, 20), st.integers())
def test_the_same_seed_gives_the_same_requests_and_more_of_them_begin_alike(
    sizes: RequestSizes, count: int, seed: int
) -> None:
    assert planned(count, sizes, seed) == planned(count + 3, sizes, seed)[:count]


@given(SIZES, st.integers())
def test_sizes_keep_to_their_spread(sizes: RequestSizes, seed: int) -> None:
    for request in planned(5, sizes, seed):
        own = len(request.prompt.split()) - sizes.shared
        for size, middle in ((own, sizes.prompt), (request.tokens, sizes.tokens)):
            assert max(1, round(middle * (1 - sizes.spread))) <= size
            assert size <= max(1, round(middle * (1 + sizes.spread)))


@given(st.integers(1, 4), st.integers())
def test_there_are_no_more_beginnings_than_prefixes(prefixes: int, seed: int) -> None:
    sizes = RequestSizes(prompt=12, shared=40, prefixes=prefixes)
    asked = [request.prompt.split() for request in planned(20, sizes, seed)]
    assert len({tuple(words[:40]) for words in asked}) <= prefixes
    assert len({tuple(words[40:]) for words in asked}) == 20


def test_other_seeds_give_other_requests() -> None:
    assert planned(1, RequestSizes(), 0) != planned(1, RequestSizes(), 1)


@given(st.floats(0.01, 1000), st.integers())
def test_arrivals_are_in_order_and_the_same_again(rate: float, seed: int) -> None:
    requests = planned(10, RequestSizes(prompt=1), 0)
    timed = poisson(requests, rate, seed)
    times = [request.at_s for request in timed]
    assert times == sorted(times, key=lambda at_s: at_s or 0)
    assert timed == poisson(requests, rate, seed)
    assert [request.prompt for request in timed] == [request.prompt for request in requests]


def test_arrivals_come_at_their_rate_on_average() -> None:
    requests = planned(4000, RequestSizes(prompt=1), 0)
    last = poisson(requests, 50, 1)[-1].at_s
    assert last == pytest.approx(4000 / 50, rel=0.1)


def test_every_word_is_a_token_of_the_demo_model() -> None:
    tokenizer = GgufCheckpoint(Path(demo_model())).tokenizer()
    assert [word for word in WORDS if len(tokenizer.encode(f" {word}")) != 1] == []
    assert len(set(WORDS)) == len(WORDS)
