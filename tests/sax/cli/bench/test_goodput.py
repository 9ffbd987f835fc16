"""Goodput: which answers are within the limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.cli.bench.report import Outcome, ServiceLimit, good, parse_limits
from sax.errors import InvalidRequest
from tests.each_case import each_case

# First token after 100 ms, pauses of 50 and 150 ms, 5 tokens in 4 parts, whole after 350 ms.
ANSWER = Outcome(sent_s=1.0, pieces_s=(1.125, 1.1875, 1.25, 1.375), ended_s=1.5, tokens=5, wanted=5)


@each_case(
    "limit, holds",
    [
        ("ttft:125", True),
        ("ttft:124", False),
        ("itl:125", True),  # the longest pause
        ("itl:124", False),
        ("tpot:62.5", True),  # 250 ms for four tokens
        ("tpot:62", False),
        ("e2e:500", True),
        ("e2e:499", False),
    ],
)
def test_a_limit_holds_up_to_its_time(limit: str, holds: bool) -> None:
    assert (good([ANSWER], parse_limits([limit])) == [ANSWER]) is holds


def test_an_answer_that_failed_is_never_good() -> None:
    failed = Outcome(sent_s=0, ended_s=0.001, error="full")
    assert good([failed], []) == []


def test_a_single_token_has_no_pause_that_could_be_too_long() -> None:
    single = Outcome(sent_s=0, pieces_s=(0.1,), ended_s=0.1, tokens=1)
    assert good([single], parse_limits(["itl:1", "tpot:1"])) == [single]


OUTCOMES = st.lists(
    st.builds(
        lambda first, gaps, error: Outcome(
            sent_s=0.0,
            pieces_s=tuple(first + sum(gaps[:place]) for place in range(len(gaps) + 1)),
            ended_s=first + sum(gaps),
            tokens=len(gaps) + 1,
            error=error,
        ),
        st.floats(0, 2),
        st.lists(st.floats(0, 1), max_size=5),
        st.sampled_from(["", "lost"]),
    ),
    max_size=8,
)
LIMITS = st.lists(
    st.builds(ServiceLimit, st.sampled_from(["ttft", "itl", "tpot", "e2e"]), st.floats(0.1, 3000)),
    max_size=4,
)


@given(OUTCOMES, LIMITS, LIMITS)
def test_more_limits_never_make_more_answers_good(
    outcomes: list[Outcome], limits: list[ServiceLimit], more: list[ServiceLimit]
) -> None:
    fewer = good(outcomes, [*limits, *more])
    assert good(good(outcomes, limits), more) == fewer


@each_case("word", ["ttft", "ttft:", "ttft:-1", "ttft:nan", "ttft:inf", "latency:5"])
def test_a_wrong_limit_is_refused_and_told_the_names(word: str) -> None:
    with pytest.raises(InvalidRequest, match="ttft, itl, tpot, e2e"):
        parse_limits([word])
