"""Reports: the figures of known outcomes, as JSON and as text."""

from __future__ import annotations

import json

import pytest

from sax.cli.bench.report import Outcome, ServiceLimit, as_lines, as_value, make_report

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
