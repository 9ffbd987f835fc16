"""A deep model judged by a shallow one."""

from __future__ import annotations

import pytest

from model_server.engine.buckets import Bucket
from model_server.plan.compiled import StepTraffic
from model_server.plan.depth import Depths, Growth, depths_of, growth_of, whole
from model_server.plan.hlo.traffic import HbmBytes
from tests.model_server.plan.measures import NO_TRAFFIC, measured

_BUCKET = Bucket(8, 0)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("a" * 96, (7, 8, range(2, 3))),
        ("ab" * 23, (6, 8, range(2, 4))),  # Gemma 2: a window in every second layer
        ("aaaaab" * 10 + "aa", (4, 10, range(2, 8))),  # Gemma 3
        ("ddd" + "r" * 58, (7, 8, range(4, 5))),  # DeepSeek-V3: three dense layers first
        ("a" * 9, None),
        ("abc" * 2, None),
        ("abcdefghijkl", None),
    ],
)
def test_some_layers_tell_of_all_where_their_pattern_is_long_enough(
    kinds: str, expected: tuple[int, int, range] | None
) -> None:
    found = depths_of(kinds)
    assert (found and (found.few, found.more, found.typical)) == expected


def test_what_the_typical_layers_move_is_added_for_those_that_were_not_compiled() -> None:
    shallow = measured(
        _BUCKET,
        flops=20.0,
        traffic=StepTraffic(HbmBytes(100, 40, 8, 0), {"all-reduce": 70, "all-gather": 5}, 9),
        layers=StepTraffic(HbmBytes(10, 4, 1, 0), {"all-reduce": 7}, 1),
    )
    found = whole(shallow, Growth(0, 0, 0, 0), Depths(6, 8, 18, range(2, 4)), 2.5)
    assert found.traffic == StepTraffic(
        HbmBytes(150, 60, 13, 0), {"all-reduce": 105, "all-gather": 5}, 14
    )
    assert (found.flops, found.layers) == (50.0, None)


def test_the_memory_of_a_layer_comes_from_one_bucket_and_counts_for_each() -> None:
    few = measured(_BUCKET, arguments=500, temporaries=120, outputs=3, code=40)
    more = measured(_BUCKET, arguments=600, temporaries=100, outputs=3, code=44)
    depths = Depths(7, 8, 10, range(2, 3))
    growth = growth_of(few, more, depths)
    assert growth == Growth(arguments=100, temporaries=0, outputs=0, code=4)
    other = measured(Bucket(8, 4), arguments=650, temporaries=9, code=90, layers=NO_TRAFFIC)
    found = whole(other, growth, depths, 1.0)
    assert (found.arguments, found.temporaries, found.code) == (850, 9, 98)
