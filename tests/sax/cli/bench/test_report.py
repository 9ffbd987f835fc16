"""Reports: the figures of known outcomes, as JSON, text and pictures; goodput and percentiles."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.cli.bench.report import (
    SHOWN,
    Outcome,
    ServiceLimit,
    as_lines,
    as_value,
    distribution,
    draw,
    good,
    make_report,
    parse_limits,
    percentile,
)
from sax.cli.commands.bench import counted, histogram
from sax.errors import InvalidRequest
from tests.each_case import each_case

WHOLE = Outcome(sent_s=1.0, pieces_s=(1.5, 2.0), ended_s=2.0, prompt_tokens=10, tokens=4, wanted=4)
SHORT = Outcome(sent_s=2.0, pieces_s=(2.25,), ended_s=3.0, prompt_tokens=30, tokens=1, wanted=4)
FAILED = Outcome(sent_s=2.0, ended_s=5.0, wanted=4, error="full")
REPORT = make_report(
    {"target": {"model": "m"}}, [WHOLE, SHORT, FAILED], 2, [ServiceLimit("ttft", 400)]
)


def test_rates_are_over_the_time_from_the_first_request_to_the_last_end() -> None:
    value = as_value(REPORT)
    assert value["seconds"] == 4.0
    assert value["input_tokens_per_s"] == 10.0
    assert value["output_tokens_per_s"] == 1.25
    assert value["requests"] == {
        "sent": 5, "answered": 2, "unfinished": 2, "failed": 1, "short": 1, "per_second": 0.5,
    }  # fmt: skip
    assert value["errors"] == {"full": 1}


def test_times_are_of_whole_answers_in_milliseconds() -> None:
    value = as_value(REPORT)
    assert value["ttft_ms"]["mean"] == 375.0
    assert value["ttft_ms"]["max"] == 500.0
    assert value["itl_ms"]["count"] == 1
    assert value["tpot_ms"]["p50"] == pytest.approx(500 / 3)
    assert value["e2e_ms"]["max"] == 1000.0


def test_goodput_counts_what_held_the_limits_among_all_that_was_sent() -> None:
    assert as_value(REPORT)["goodput"] == {
        "limits": [{"measure": "ttft", "most_ms": 400}],
        "requests": 1,
        "share": 0.2,
        "per_second": 0.25,
    }


def test_the_text_tells_errors_short_answers_and_goodput() -> None:
    text = "\n".join(as_lines(REPORT))
    assert "2 of 5 requests answered in 4.00 s, 1 error, 2 not finished" in text
    assert "1 x full" in text
    assert "1 answer ended before the tokens that were asked for" in text
    assert "goodput 0.25 requests/s: 1 of 5 (20%) within ttft 400 ms" in text


def test_a_run_without_an_outcome_is_a_report_too() -> None:
    report = make_report({}, [], 3, [ServiceLimit("ttft", 1)])
    value = json.loads(json.dumps(as_value(report)))
    assert value["ttft_ms"] is None
    assert value["output_tokens_per_s"] == 0
    assert "0 of 3 requests" in "\n".join(as_lines(report))


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


TIMES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(TIMES, st.floats(0, 100))
def test_a_percentile_is_that_of_numpy(values: list[float], percent: float) -> None:
    ours = percentile(sorted(values), percent)
    assert ours == pytest.approx(float(np.percentile(values, percent)), rel=1e-6, abs=1e-6)


@given(TIMES)
def test_percentiles_rise_from_the_least_to_the_most(values: list[float]) -> None:
    found = distribution(values)
    assert found is not None
    rising = [min(values), *(found.percentiles[each] for each in SHOWN), found.most]
    assert all(low <= high * (1 + 1e-9) for low, high in zip(rising, rising[1:], strict=False))
    assert found.count == len(values)
    assert found.mean == pytest.approx(float(np.mean(values)))


def test_no_values_have_no_percentile() -> None:
    assert distribution([]) is None
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


SVG = "{http://www.w3.org/2000/svg}"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(1, 12))
def test_every_value_is_counted_once(values: list[float], bars: int) -> None:
    counts = counted(values, bars)
    assert len(counts) == bars
    assert sum(counts) == len(values)


def test_a_bar_is_as_long_as_its_share_of_the_most() -> None:
    assert list(histogram([0, 0, 0, 0, 8], bars=2, width=4)) == [
        "0.0 - 4.0 ████ 4",
        "4.0 - 8.0 █    1",
    ]
    assert list(histogram([])) == []


@given(st.lists(st.tuples(st.floats(0.001, 10), st.floats(0.001, 10)), max_size=6))
def test_a_picture_is_xml_with_a_curve_for_each_time_that_was_measured(
    times: list[tuple[float, float]],
) -> None:
    outcomes = [
        Outcome(sent_s=0, pieces_s=(a, a + b), ended_s=a + b, tokens=2, wanted=2) for a, b in times
    ]
    report = make_report({}, outcomes, 0, [ServiceLimit("ttft", 5), ServiceLimit("e2e", 9)])
    tree = ElementTree.fromstring(draw(report, "a <model> & more"))
    assert tree.findtext(f"{SVG}title") == "a <model> & more"
    assert len(tree.findall(f".//{SVG}polyline")) == (4 if times else 0)
    assert len(tree.findall(f".//{SVG}line[@class='limit']")) == (2 if times else 0)


def test_a_curve_rises_to_the_right() -> None:
    outcomes = [
        Outcome(sent_s=0, pieces_s=(ms / 1e3,), ended_s=ms / 1e3, tokens=1) for ms in range(1, 40)
    ]
    tree = ElementTree.fromstring(draw(make_report({}, outcomes, 0, []), "t"))
    curve = tree.find(f".//{SVG}polyline")
    assert curve is not None
    points = [tuple(map(float, point.split(","))) for point in curve.attrib["points"].split()]
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
