"""Rounded rows are on the grid, and products by them never worse than by the nearest numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.plan.quantize.rounding import Grid, by_importance, corrected, error, nearest


def in_bfloat16(scales: np.ndarray) -> np.ndarray:
    return scales.astype(ml_dtypes.bfloat16).astype(np.float32)


def case(seed: int, outputs: int, inputs: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix with a few large columns, and moments of rows that are alike."""
    draw = np.random.default_rng(seed)
    weight = draw.normal(size=(outputs, inputs)).astype(np.float32)
    weight[:, draw.integers(inputs)] *= 8
    mixed = draw.normal(size=(inputs, inputs)) * draw.uniform(0, 3, inputs)
    x = (draw.normal(size=(rows, inputs)) @ mixed).astype(np.float32)
    return weight, x.T @ x / max(rows, 1)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    bits=st.sampled_from([4, 8]),
    group=st.sampled_from([None, 8]),
    rows=st.integers(0, 40),  # fewer than columns: moments without an inverse
)
def test_corrected_numbers_never_have_more_error_than_the_nearest(
    seed: int, bits: int, group: int | None, rows: int
) -> None:
    weight, moments = case(seed, 5, 24, rows)
    grid = Grid(bits, group, in_bfloat16)
    found, simple = corrected(weight, moments, grid), nearest(weight, grid)
    assert error(weight, moments, found) <= error(weight, moments, simple)
    assert found.codes.min() >= grid.least
    assert found.codes.max() <= grid.most
    np.testing.assert_array_equal(found.scales, in_bfloat16(found.scales))


def test_numbers_that_are_on_the_grid_stay() -> None:
    draw = np.random.default_rng(0)
    weight = draw.integers(-7, 8, (6, 16)).astype(np.float32)
    weight[:, 0] = 7  # so that the scale is one
    grid = Grid(4, None, in_bfloat16)
    _, moments = case(1, 6, 16, 64)
    for found in (nearest(weight, grid), corrected(weight, moments, grid)):
        np.testing.assert_array_equal(found.widened(), weight)


@pytest.mark.parametrize("group", [None, 8])
def test_correction_halves_the_error_of_inputs_that_are_alike(group: int | None) -> None:
    weight, moments = case(3, 32, 64, 512)
    grid = Grid(4, group, in_bfloat16)
    simple = error(weight, moments, nearest(weight, grid))
    weighed = error(weight, moments, by_importance(weight, np.diag(moments), grid))
    best = error(weight, moments, corrected(weight, moments, grid))
    assert best < weighed < simple
    assert best < simple / 2


def test_rows_are_rounded_alone() -> None:
    weight, moments = case(5, 12, 32, 200)
    grid = Grid(4, None, in_bfloat16)
    some = corrected(weight[3:7], moments, grid)
    # The passes stop when the error of all rows grows: those of a part may stop elsewhere.
    whole = corrected(np.concatenate([weight[3:7], weight[3:7]]), moments, grid)
    np.testing.assert_array_equal(whole.codes[:4], some.codes)
    np.testing.assert_array_equal(whole.codes[4:], some.codes)


def test_a_row_of_zeros_becomes_zeros() -> None:
    weight, moments = case(6, 3, 16, 50)
    weight[1] = 0
    found = corrected(weight, moments, Grid(4, 8, in_bfloat16))
    assert not found.widened()[1].any()
