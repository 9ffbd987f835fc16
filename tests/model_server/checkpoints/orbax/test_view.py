"""A view's region is the same region of the whole view, read from no more than it needs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.orbax.view import OrbaxView


class _Counting:
    """An array that remembers how much of it was read."""

    def __init__(self, array: Any, read: list[int]) -> None:
        self._array, self._read = array, read

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape)

    def __getitem__(self, index: Any) -> _Counting:
        return _Counting(self._array[index], self._read)

    def read(self) -> Any:
        self._read.append(math.prod(self._array.shape))
        return self._array.read()


def _stored(shape: tuple[int, ...]) -> tuple[Any, np.ndarray]:
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    return ts.array(values), values


def test_heads_and_their_dimensions_become_rows() -> None:
    array, values = _stored((3, 5, 4))  # [H, D, Q]
    view = OrbaxView("w", ((0, 2), (1,)))
    assert view.shape((3, 5, 4)) == (12, 5)
    np.testing.assert_array_equal(view.read(array), values.transpose(0, 2, 1).reshape(12, 5))


def test_an_axis_can_be_taken_at_one_place() -> None:
    array, values = _stored((2, 3, 5, 4))  # [2, K, D, Q]
    view = OrbaxView("w", ((1, 3), (2,)), taken=((0, 1),))
    expected = values[1].transpose(0, 2, 1).reshape(12, 5)
    np.testing.assert_array_equal(view.read(array), expected)


def test_neighbours_become_halves_head_by_head() -> None:
    array, values = _stored((1, 2, 6))  # [D, H, Q]
    view = OrbaxView("w", ((1, 2), (0,)), paired=True)
    assert view.read(array)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_padding_rows_are_not_there() -> None:
    array, values = _stored((6, 2))
    view = OrbaxView("w", ((0,), (1,)), rows=4)
    assert view.shape((6, 2)) == (4, 2)
    np.testing.assert_array_equal(view.read(array), values[:4])


def test_every_second_column_is_read_with_and_without_a_place_for_it() -> None:
    array, values = _stored((3, 4, 6))
    view, region = OrbaxView("w", ((0,), (1,), (2,))), (slice(1, 3), slice(None), slice(1, 6, 2))
    out = np.empty((2, 4, 3), np.float32)
    for into in (None, out):
        np.testing.assert_array_equal(view.read(array, region, into), values[1:3, :, 1::2])
    np.testing.assert_array_equal(out, values[1:3, :, 1::2])
    merged = OrbaxView("w", ((0,), (1, 2)))
    np.testing.assert_array_equal(
        merged.read(array, (slice(0, 3), slice(5, 20, 4))), values.reshape(3, 24)[:, 5:20:4]
    )
    of_three = OrbaxView("w", ((0, 1, 2),)).read(array, (slice(25, 47, 4),))  # of one first index
    np.testing.assert_array_equal(of_three, values.reshape(-1)[25:47:4])


def test_a_single_number_has_no_shape() -> None:
    array, values = _stored(())
    view = OrbaxView("w", ())
    assert view.shape(()) == view.read(array).shape == ()
    assert view.read(array) == values


def test_a_scale_is_applied_in_float32_and_keeps_the_format() -> None:
    values = np.full((1, 1), 3, np.float16)
    read = OrbaxView("w", ((0,), (1,)), scale=math.sqrt(2)).read(ts.array(values))
    assert read.dtype == np.float16
    assert read[0, 0] == np.float16(np.float32(3) * np.float32(math.sqrt(2)))


def test_a_region_reads_only_the_heads_it_touches() -> None:
    array, _ = _stored((8, 5, 4))
    read: list[int] = []
    view = OrbaxView("w", ((0, 2), (1,)))
    view.read(_Counting(array, read), (slice(9, 11), slice(1, 3)))
    assert read == [1 * 2 * 4]  # one head of eight, two columns of five


def test_rows_with_one_index_on_the_slowest_axis_are_read_alone() -> None:
    array, values = _stored((3, 5, 4, 2))  # [3, D, H, Q]
    read: list[int] = []
    view = OrbaxView("w", ((0, 2, 3), (1,)))
    region = (slice(10, 14), slice(0, 5))  # heads 1 and 2 of the second of three
    found = view.read(_Counting(array, read), region)
    np.testing.assert_array_equal(found, values.transpose(0, 2, 3, 1).reshape(24, 5)[10:14])
    assert read == [2 * 2 * 5]


@given(st.data())
def test_a_region_is_cut_out_of_the_whole(data: st.DataObject) -> None:
    sizes = st.integers(1, 4)
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(sizes) for _ in range(rank))
    axes = data.draw(st.permutations(range(rank)))
    cuts = sorted(data.draw(st.sets(st.integers(1, rank), max_size=rank)) - {rank})
    dims = tuple(tuple(axes[a:b]) for a, b in zip([0, *cuts], [*cuts, rank], strict=True))
    even = shape[dims[0][-1]] % 2 == 0
    view = OrbaxView("w", dims, paired=even and data.draw(st.booleans()))
    array, _ = _stored(shape)
    whole = view.read(array)
    assert whole.shape == view.shape(shape)
    region = []
    for size in whole.shape:
        start = data.draw(st.integers(0, size - 1))
        region.append(slice(start, data.draw(st.integers(start + 1, size))))
    part = view.read(array, tuple(region))
    np.testing.assert_array_equal(part, whole[tuple(region)])
