"""Figures and lists as people read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sax import format as text
from tests.each_case import each_case

GIB = 2**30


@each_case(
    "count, said",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (3 * GIB // 2, "1.50 GiB"),
        (-3 * GIB, "-3.00 GiB"),
        (5000 * 2**40, "5000.00 TiB"),
    ],
)
def test_bytes_are_said_in_human_units(count: int, said: str) -> None:
    assert text.human_bytes(count) == said


def test_a_place_may_want_fewer_digits() -> None:
    assert text.human_bytes(1536, 1) == "1.5 KiB"


def test_one_is_no_plural() -> None:
    assert [text.count(number, "server") for number in (0, 1, 2)] == [
        "0 servers",
        "1 server",
        "2 servers",
    ]


def test_a_listing_names_a_few_and_counts_the_rest() -> None:
    assert text.listing(["a", "b"]) == "a, b"
    assert text.listing(list("abcdef")) == "a, b, c, d, and 2 more"


def test_paths_are_listed_once_in_order() -> None:
    assert text.describe_paths(["b", "a", "b"]) == "a, b"
    assert text.describe_paths([]) == "no path at all"


def test_a_time_is_in_utc() -> None:
    assert text.clock_time(3661) == "01:01:01 UTC"


@each_case("show", [text.quoted, text.shortened, text.without_long_words])
@each_case("length", [0, 1, text.LONGEST_QUOTE])
def test_input_that_is_short_is_repeated_whole(length: int, show: Callable[[str], str]) -> None:
    assert "x" * length in show("x" * length)


@pytest.mark.parametrize("show", [text.quoted, text.shortened, text.without_long_words])
def test_long_input_is_shown_by_its_start_and_length(show: Callable[[str], str]) -> None:
    shown = show("x" * 8_000_000)
    assert shown.endswith("... (8000000 characters)")
    assert shown.count("x") < text.LONGEST_QUOTE


def test_values_of_any_kind_are_quoted_by_their_start() -> None:
    assert text.quoted(3) == "3"
    assert text.quoted(None) == "None"
    assert text.quoted([1, "a"]) == "[1, 'a']"
    assert len(text.quoted(10**4000)) < 300
    assert len(text.quoted([["x" * 10**6] * 1000] * 1000)) < 3000


def test_words_of_usual_length_pass_with_their_spaces() -> None:
    said = "a path  /x/y\n and more " * 50
    assert text.without_long_words(said) == said
