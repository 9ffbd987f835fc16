"""Logical axes become mesh axes where they divide evenly, and heads divide or do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from model_server.models.weights.sharding import (
    divided_rows,
    first_devices,
    layout_of,
    make_mesh,
    parse_rules,
    split_heads,
)
from sax.errors import InvalidRequest, MemoryPlanError


def spec(
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    mesh: tuple[int, int, int],
    rules: dict[str, str | None] | None = None,
    bits: int = 8,
) -> tuple[str | None, ...]:
    return tuple(layout_of(mesh, parse_rules(rules)).spec(shape, axes, bits))


def test_heads_go_to_the_model_axis_and_embed_to_data() -> None:
    assert spec((64, 32), ("heads", "embed"), (1, 2, 4)) == ("model", "data")


def test_a_dimension_that_does_not_divide_stays_whole() -> None:
    assert spec((9, 32), ("heads", "embed"), (1, 1, 4)) == (None, None)


def test_a_mesh_axis_divides_one_dimension_only() -> None:
    axes = ("experts", "ffw", "embed")
    assert spec((8, 64, 32), axes, (1, 1, 4)) == ("model", None, None)
    assert spec((6, 64, 32), axes, (1, 1, 4)) == (None, "model", None)


def test_rules_move_a_logical_axis_and_leave_the_others() -> None:
    axes = ("experts", "embed", "ffw")
    rules = {"experts": "data"}
    assert spec((8, 32, 64), axes, (1, 2, 4), rules) == ("data", None, "model")
    assert spec((8, 32, 64), axes, (1, 2, 4), rules | {"ffw": None}) == ("data", None, None)


def test_embed_gives_its_axis_to_whatever_else_wants_it() -> None:
    assert spec((32, 64), ("embed", "ffw"), (1, 2, 4), {"ffw": "data"}) == (None, "data")


def test_a_byte_of_two_numbers_is_not_cut() -> None:
    assert spec((4, 12), (None, "ffw"), (1, 1, 4), bits=4) == (None, None)
    assert spec((4, 12), (None, "ffw"), (1, 1, 2), bits=4) == (None, "model")
    assert spec((12, 4), ("ffw", None), (1, 1, 4), bits=4) == ("model", None)


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
    with pytest.raises(MemoryPlanError, match="needs 4096 devices; this server has"):
        make_mesh((1, 64, 64))


def devices(hosts: int, each: int) -> list[Any]:
    return [SimpleNamespace(process_index=i % hosts, id=i) for i in range(hosts * each)]


def test_a_mesh_takes_as_many_devices_of_every_host() -> None:
    taken = first_devices(devices(2, 4), (1, 2, 2))
    assert [device.process_index for device in taken] == [0, 0, 1, 1]


def test_a_mesh_that_hosts_cannot_share_evenly_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="has 3 devices, which the 2 hosts"):
        first_devices(devices(2, 4), (1, 1, 3))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(16, ("replica", "data")), (4, ("replica", "data")), (2, None), (1, None)],
)
def test_inputs_are_divided_over_the_copies_of_a_model_if_evenly(rows: int, expected: Any) -> None:
    weights = layout_of((2, 2, 3)).sharding((6, 8), ("ffw", "embed"))
    found = divided_rows(weights, rows)
    assert isinstance(found, NamedSharding)
    assert found.spec == PartitionSpec(expected)
