"""A deep model judged by two shallow ones."""

from __future__ import annotations

import pytest

from model_server.engine.buckets import Bucket
from model_server.plan.depth import Depths, depths_of, whole
from model_server.plan.hlo_traffic import Moved
from tests.model_server.plan.measures import measured

_BUCKET = Bucket(8, 0)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("a" * 96, (2, 3)),
        ("ab" * 23, (2, 4)),  # Gemma 2: a window in every second layer
        ("aaaaab" * 10 + "aa", (6, 12)),  # Gemma 3
        ("ddd" + "r" * 58, (4, 5)),  # DeepSeek-V3: three dense layers first
        ("a" * 4, None),
        ("abc" * 2, None),
        ("abcdefgh", None),
    ],
)
def test_two_depths_tell_a_whole_one_where_its_pattern_is_long_enough(
    kinds: str, expected: tuple[int, int] | None
) -> None:
    found = depths_of(kinds)
    assert (found and (found.few, found.more)) == expected


def test_what_every_layer_adds_is_added_for_the_layers_that_were_not_compiled() -> None:
    few = measured(
        _BUCKET, arguments=500, flops=20.0, moved=Moved(10, 4, 0, 0), sent={"all-reduce": 7}
    )
    more = measured(
        _BUCKET, arguments=600, flops=23.0, moved=Moved(12, 5, 2, 0), sent={"all-reduce": 9}
    )
    found = whole(few, more, Depths(2, 3, 10))
    assert (found.arguments, found.flops, found.sent) == (1300, 44.0, {"all-reduce": 23})
    assert found.moved == Moved(26, 12, 16, 0)


def test_temporaries_never_come_out_smaller_than_they_were_seen() -> None:
    few, more = measured(_BUCKET, temporaries=120), measured(_BUCKET, temporaries=100)
    assert whole(few, more, Depths(2, 3, 96)).temporaries == 100


def test_code_that_may_be_shared_is_told_at_least_and_at_most() -> None:
    few = measured(_BUCKET, code=4, code_least=4)
    more = measured(_BUCKET, code=6, code_least=6)
    found = whole(few, more, Depths(2, 3, 10))
    assert (found.code_least, found.code) == (6, 20)
