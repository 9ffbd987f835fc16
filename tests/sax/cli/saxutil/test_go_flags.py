"""Flags in Go's grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.cli.saxutil.go_flags import (
    WrongUsage,
    duration_flag,
    number_flag,
    parse_flags,
    read_duration,
    switch,
    text_flag,
)
from tests.each_case import each_case

FLAGS = (
    text_flag("extra", "text"),
    switch("stream", "switch"),
    switch("details", "on", default=True),
    number_flag("n", "number"),
    duration_flag("wait", "duration", 60.0),
)


@each_case(
    "words",
    ["-extra=a:1 -n=3 M Q", "--extra=a:1 --n=3 M Q", "-extra a:1 -n 3 M Q", "--n 3 -extra a:1 M Q"],
)
def test_one_dash_or_two_and_an_equals_sign_or_none_say_the_same(words: str) -> None:
    parsed = parse_flags(FLAGS, words.split())
    assert (parsed.values["extra"], parsed.values["n"]) == ("a:1", 3)
    assert parsed.given == {"extra", "n"}
    assert parsed.words == ("M", "Q")


def test_a_switch_stands_alone_or_has_a_value_behind_an_equals_sign() -> None:
    assert parse_flags(FLAGS, ["-stream", "true"]).words == ("true",)
    assert parse_flags(FLAGS, ["-stream"]).values["stream"] is True
    assert parse_flags(FLAGS, ["-details=false", "-stream=T"]).values["details"] is False
    assert parse_flags(FLAGS, []).values["details"] is True


def test_flags_end_at_the_first_word_and_at_two_dashes() -> None:
    assert parse_flags(FLAGS, ["M", "-n=3"]).words == ("M", "-n=3")
    assert parse_flags(FLAGS, ["-stream", "--", "-n=3"]).words == ("-n=3",)
    assert parse_flags(FLAGS, ["-", "-n=3"]).words == ("-", "-n=3")


@each_case(
    "words, told",
    [
        (["-nn=3"], "no flag here; there are -extra, -stream"),
        (["-n=three"], "whole number"),
        (["-stream=maybe"], "true or false"),
        (["-extra"], "needs a value"),
        (["-wait=60"], "60s"),
    ],
)
def test_a_wrong_flag_is_named(words: list[str], told: str) -> None:
    with pytest.raises(WrongUsage, match=told):
        parse_flags(FLAGS, words)


@each_case(
    "text, seconds",
    [("60s", 60.0), ("1m30s", 90.0), ("500ms", 0.5), ("1.5h", 5400.0), ("0", 0.0), (".5s", 0.5)],
)
def test_durations_are_gos(text: str, seconds: float) -> None:
    assert read_duration(text) == pytest.approx(seconds)


@given(st.lists(st.text(max_size=8), max_size=6))
def test_words_behind_two_dashes_arrive_as_they_are(words: list[str]) -> None:
    assert list(parse_flags(FLAGS, ["-n=1", "--", *words]).words) == words
