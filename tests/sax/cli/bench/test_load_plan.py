"""Loads that are planned: workloads are the same again for the same seed, and lines of traces mean
what they say or are told wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from sax.cli.bench.load_plan import BLOCK, WORDS, RequestSizes, planned, poisson, read_trace
from sax.errors import InvalidRequest
from tests.demo_model import demo_model
from tests.each_case import each_case


def line(timestamp: float = 0, **fields: Any) -> str:
    return json.dumps({"timestamp": timestamp, "output_length": 1, **fields})


def test_times_begin_with_the_first_line_and_are_divided_by_the_speed() -> None:
    lines = [line(2500, input_length=3), "\n", line(1000, input_length=3)]
    assert [each.at_s for each in read_trace(lines, 0, speed=2)] == [0, 0.75]


def test_a_prompt_that_is_given_is_sent_as_it_is() -> None:
    (request,) = read_trace([line(prompt="Hello,  you", output_length=7)], 0)
    assert (request.prompt, request.tokens) == ("Hello,  you", 7)


@given(st.integers(1, 3 * BLOCK), st.lists(st.integers(0, 3), max_size=4), st.integers())
def test_a_prompt_has_its_length_and_begins_with_its_blocks(
    length: int, ids: list[int], seed: int
) -> None:
    first, second = read_trace([line(input_length=length, hash_ids=ids)] * 2, seed)
    one, other = first.prompt.split(), second.prompt.split()
    assert len(one) == len(other) == length
    shared = min(length, BLOCK * len(ids))
    assert one[:shared] == other[:shared]
    if length > shared + 8:
        assert one[shared:] != other[shared:]


def test_prompts_have_the_blocks_in_common_that_their_ids_say() -> None:
    lines = [line(input_length=3 * BLOCK, hash_ids=ids) for ids in ([1, 2, 3], [1, 4, 3])]
    one, other = (request.prompt.split() for request in read_trace(lines, 0))
    same = [one[at : at + BLOCK] == other[at : at + BLOCK] for at in range(0, 3 * BLOCK, BLOCK)]
    assert same == [True, False, True]


@each_case(
    "wrong, told",
    [
        ("{", "line 2"),
        (line(input_lengt=3), "input_lengt"),
        (line(), "input_length or prompt"),
        (line(prompt="x", input_length=1), "input_length or prompt"),
        (line(prompt="x", hash_ids=[1]), "hash_ids"),
        (line(input_length=0), "input_length is 0"),
        (line(input_length=1, output_length=0), "output_length is 0"),
        (line("soon", input_length=1), "timestamp"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_wrong_line_is_told_with_its_number(wrong: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match="line 2 of the trace") as refused:
        read_trace([line(input_length=1), wrong], 0)
    assert told in refused.value.text


def test_a_trace_without_a_line_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no lines"):
        read_trace(["\n"], 0)


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
