"""Traces: what their lines stand for, and how a wrong line is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.cli.bench.load_plan import BLOCK, read_trace
from sax.errors import InvalidRequest
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
