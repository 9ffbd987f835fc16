"""Logical axes become mesh axes where they divide evenly, and heads divide or do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.models.sharding import make_mesh, spec_of, split_heads
from sax.errors import InvalidRequest


def mesh(replica: int, data: int, model: int) -> Any:
    """Only the sizes matter to the rules."""
    return SimpleNamespace(shape={"replica": replica, "data": data, "model": model})


def test_heads_go_to_the_model_axis_and_embed_to_data() -> None:
    assert tuple(spec_of((64, 32), ("heads", "embed"), mesh(1, 2, 4))) == ("model", "data")


def test_a_dimension_that_does_not_divide_stays_whole() -> None:
    assert tuple(spec_of((9, 32), ("heads", "embed"), mesh(1, 1, 4))) == (None, None)


def test_a_mesh_axis_divides_one_dimension_only() -> None:
    spec = spec_of((8, 64, 32), ("experts", "ffw", "embed"), mesh(1, 1, 4))
    assert tuple(spec) == ("model", None, None)
    spec = spec_of((6, 64, 32), ("experts", "ffw", "embed"), mesh(1, 1, 4))
    assert tuple(spec) == (None, "model", None)


@given(
    kv_heads=st.integers(1, 16), ratio=st.integers(1, 8), shards=st.sampled_from([1, 2, 3, 4, 8])
)
def test_split_heads_share_out_whole_heads(kv_heads: int, ratio: int, shards: int) -> None:
    split = split_heads(kv_heads * ratio, kv_heads, shards)
    assert split.kv_heads == kv_heads * split.copies
    assert (kv_heads * ratio) % split.kv_heads == 0
    if split.sharded:
        assert split.kv_heads % shards == 0
        assert (kv_heads * ratio) % shards == 0
    else:
        assert split.copies == 1
        assert split.axis is None


def test_kv_heads_are_copied_where_there_are_more_devices() -> None:
    assert split_heads(8, 2, 4) == split_heads(16, 2, 4)
    assert split_heads(8, 2, 4).copies == 2


@pytest.mark.parametrize("shape", [(1, 1), (1, 0, 1), (1, 1, "2"), (1, 1, 2.0)])
def test_a_mesh_of_a_strange_shape_is_refused(shape: Any) -> None:
    with pytest.raises(InvalidRequest, match="three sizes"):
        make_mesh(shape)


def test_a_mesh_larger_than_the_server_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidRequest, match="needs 4096 devices and this server has"):
        make_mesh((1, 64, 64))
