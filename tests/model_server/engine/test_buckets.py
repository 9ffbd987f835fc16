"""The closed set covers every step that its limits allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.buckets import Bucket, choose, closed_set


@given(st.integers(1, 100), st.data())
def test_every_step_within_the_limits_has_a_bucket(slots: int, data: st.DataObject) -> None:
    buckets = closed_set(slots, (1, 4, 8))
    decodes = data.draw(st.integers(0, slots))
    blocks = data.draw(st.integers(0, 8))
    chosen = choose(buckets, decodes, blocks, 32)
    assert chosen.decodes >= decodes
    assert chosen.blocks >= blocks
    assert chosen in buckets


def test_the_bucket_with_the_fewest_tokens_is_chosen() -> None:
    buckets = closed_set(32, (1, 4))
    assert choose(buckets, 1, 0, 32) == Bucket(2, 0)
    assert choose(buckets, 3, 0, 32) == Bucket(8, 0)
    assert choose(buckets, 1, 2, 32) == Bucket(32, 4)
    assert choose(buckets, 9, 1, 32) == Bucket(32, 1)


def test_no_bucket_has_a_single_row() -> None:
    assert min(bucket.decodes for bucket in closed_set(1, (1,))) == 2


def test_a_step_beyond_the_set_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="no bucket holds 33 decodes"):
        choose(closed_set(32, (1,)), 33, 0, 32)


def test_where_padding_is_skipped_three_sizes_of_decodes_do() -> None:
    assert closed_set(32, (1, 4), skips=True) == (
        Bucket(2, 0),
        Bucket(8, 0),
        Bucket(32, 0),
        Bucket(32, 1),
        Bucket(32, 4),
    )
    assert closed_set(1, (1,), skips=True) == (Bucket(2, 0), Bucket(2, 1))


def test_where_padding_is_skipped_few_shapes_do() -> None:
    made = closed_set(32, (4, 1, 8), skips=True)
    assert [(each.decodes, each.blocks) for each in made] == [
        (2, 0),
        (8, 0),
        (32, 0),
        (32, 1),
        (32, 8),
    ]
    assert [each.blocks for each in closed_set(32, (4,), skips=True)] == [0, 0, 0, 4]
