"""A region of an expression equals the same region of the whole, read without the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.checkpoints.region import Region, deliver, region_shape, whole
from model_server.models.weights.source import (
    GroupRows,
    Joined,
    PaddedColumns,
    RepeatedGroups,
    Stacked,
    Tensor,
    Transposed,
    WeightSource,
    cut,
    source_of,
)
from sax.errors import CheckpointError


class Arrays:
    """Tensors in memory that count the numbers they hand out."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = arrays
        self.handed_out = 0

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        found = self.arrays[name][region or ...]
        self.handed_out += found.size
        return deliver(found, out)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


STORED = Arrays(a=numbers(6, 5), b=numbers(4, 5), c=numbers(2, 5), d=numbers(4, 5), v=numbers(6))
SOURCES: dict[str, tuple[WeightSource, np.ndarray]] = {
    "tensor": (Tensor("a"), STORED.arrays["a"]),
    "joined": (
        source_of(("a", "b", "c")),
        np.concatenate([STORED.arrays[n] for n in "abc"]),
    ),
    "joined columns": (
        Joined((Tensor("b"), Tensor("d")), axis=1),
        np.concatenate([STORED.arrays["b"], STORED.arrays["d"]], axis=1),
    ),
    "padded columns": (
        PaddedColumns(source_of(("b", "d")), 5, 8),
        np.pad(np.concatenate([STORED.arrays["b"], STORED.arrays["d"]]), ((0, 0), (0, 3))),
    ),
    "stacked": (
        Stacked((Tensor("b"), Tensor("d"))),
        np.stack([STORED.arrays["b"], STORED.arrays["d"]]),
    ),
    "stacked and joined": (
        Stacked((source_of(("b", "c")), Tensor("a"))),
        np.stack([np.concatenate([STORED.arrays["b"], STORED.arrays["c"]]), STORED.arrays["a"]]),
    ),
    "transposed": (Transposed(Tensor("a")), STORED.arrays["a"].T),
    "cut": (cut(Tensor("a"), 1, 4, of=6), STORED.arrays["a"][1:4]),
    "rows of groups": (
        GroupRows(Tensor("a"), size=3, start=1, stop=3, groups=2),
        STORED.arrays["a"][[1, 2, 4, 5]],
    ),
    "repeated": (
        RepeatedGroups(Tensor("b"), size=2, times=3),
        np.repeat(STORED.arrays["b"].reshape(2, 1, 2, 5), 3, axis=1).reshape(12, 5),
    ),
    "a repeated vector": (
        RepeatedGroups(Tensor("v"), size=3, times=2),
        np.repeat(STORED.arrays["v"].reshape(2, 1, 3), 2, axis=1).reshape(12),
    ),
}


@st.composite
def regions(draw: st.DrawFn, shape: tuple[int, ...]) -> Region:
    bounds = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return tuple(
        slice(a, b) if a < b else slice(0, n) for (a, b), n in zip(bounds, shape, strict=True)
    )


@settings(max_examples=300)
@given(kind=st.sampled_from([*SOURCES]), data=st.data())
def test_a_region_is_the_region_of_the_whole(kind: str, data: st.DataObject) -> None:
    source, wanted = SOURCES[kind]
    assert source.shape(STORED) == wanted.shape
    region = data.draw(regions(wanted.shape))
    before = STORED.handed_out
    np.testing.assert_array_equal(source.read(STORED, region), wanted[region])
    assert STORED.handed_out - before <= np.prod(region_shape(region))


def test_parts_that_do_not_fit_together_are_named_with_their_shapes() -> None:
    stored = Arrays(a=numbers(3, 4), b=numbers(3, 5))
    with pytest.raises(CheckpointError, match=r"a is \[3, 4\], b is \[3, 5\]"):
        source_of(("a", "b")).shape(stored)
    with pytest.raises(CheckpointError, match="same shape"):
        Stacked((Tensor("a"), Tensor("b"))).shape(stored)


def test_groups_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(CheckpointError, match="8 rows"):
        GroupRows(Tensor("a"), size=4, start=0, stop=1, groups=2).shape(STORED)


def test_names_come_in_the_order_of_the_parts() -> None:
    source = Stacked((source_of(("b", "c")), Transposed(Tensor("a"))))
    assert source.names == ("b", "c", "a")
    assert whole((2, 3)) == (slice(0, 2), slice(0, 3))


def test_joined_parts_must_each_have_the_rows_that_the_model_says() -> None:
    """Not only all of them together: queries and keys must not trade rows."""
    parts = (Tensor("a"), Tensor("b"))
    assert Joined(parts, sizes=(6, 4)).shape(STORED) == (10, 5)
    with pytest.raises(CheckpointError, match=r"a is \[6, 5\], b is \[4, 5\]; .* 4 and 6 rows"):
        Joined(parts, sizes=(4, 6)).shape(STORED)
