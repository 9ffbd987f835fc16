"""Figures and lists as people read them."""

from __future__ import annotations

import pytest

from sax import format as text

GIB = 2**30


@pytest.mark.parametrize(
    ("count", "said"),
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
