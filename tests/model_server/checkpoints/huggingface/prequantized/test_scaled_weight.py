"""Float8 and int8 weights give the numbers they were made from, whole and region by region."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.checkpoints.huggingface.prequantized.scaled_weight import scaled_weights
from model_server.checkpoints.packed import Packing
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.huggingface.prequantized.stored_arrays import Arrays, whole_read

OUT, IN = 16, 32
FLOAT8 = "float8_e4m3fn"
Made = tuple[tuple[int, int] | None, Any, np.ndarray]


def values(dtype: Any = ml_dtypes.float8_e4m3fn, columns: int = IN) -> np.ndarray:
    return (20 * np.random.default_rng(5).normal(size=(OUT, columns))).astype(dtype)


def blocks(down: int, across: int, *, columns: int = IN) -> Made:
    """DeepSeek-V3's square blocks; the last may be cut off."""
    shape = (-(-OUT // down), -(-columns // across))
    scales = np.random.default_rng(1).uniform(0.5, 2, shape).astype(np.float32)
    stored = Arrays(w__weight=values(columns=columns), w__weight_scale_inv=scales)
    wide = np.repeat(np.repeat(scales, down, axis=0), across, axis=1)[:OUT, :columns]
    return (down, across), stored, values(columns=columns).astype(np.float32) * wide


def rows(dtype: Any, *shape: int) -> Made:
    scales = np.random.default_rng(1).uniform(0.5, 2, shape).astype(np.float32)
    stored = Arrays(w__weight=values(dtype), w__weight_scale=scales)
    return None, stored, values(dtype).astype(np.float32) * scales.reshape(-1, 1)


def exponents() -> Made:
    """MXFP8, with scales as float8_e8m0."""
    scales = np.random.default_rng(1).integers(120, 130, (OUT, 2)).astype(np.uint8)
    stored = Arrays(w__weight=values(), w__weight_scale=scales.view(ml_dtypes.float8_e8m0fnu))
    wide = np.repeat(np.exp2(scales.astype(np.float32) - 127), 16, axis=1)
    return None, stored, values().astype(np.float32) * wide


CASES: dict[str, tuple[Made, Packing | None]] = {
    "square blocks": (blocks(6, 8), Packing(FLOAT8, 8, False)),
    "square blocks that are cut off": (blocks(6, 24), None),
    "one block": (blocks(128, 128), Packing(FLOAT8, None, False)),
    "a scale for all": (rows(ml_dtypes.float8_e4m3fn, 1), Packing(FLOAT8, None, False)),
    "a scalar": (rows(ml_dtypes.float8_e4m3fn), Packing(FLOAT8, None, False)),
    "rows": (rows(ml_dtypes.float8_e4m3fn, OUT, 1), Packing(FLOAT8, None, False)),
    "rows in a vector": (rows(np.int8, OUT), Packing("int8", None, False)),
    "exponents": (exponents(), Packing(FLOAT8, 16, False)),
}


def read(tile: tuple[int, int] | None, stored: Any) -> Any:
    return scaled_weights(tile, stored.dtypes, stored)["w.weight"]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
@each_case("case", CASES)
def test_any_region_gives_the_numbers_it_was_made_from(case: str, data: st.DataObject) -> None:
    (tile, stored, wanted), packing = CASES[case]
    weight = read(tile, stored)
    assert (weight.shape, weight.packing) == (wanted.shape, packing)
    np.testing.assert_allclose(whole_read(weight, stored), wanted, rtol=1e-6)
    first, last = sorted(data.draw(st.tuples(st.integers(0, OUT - 1), st.integers(0, OUT - 1))))
    steps = wanted.shape[1] // weight.step - 1
    left, right = sorted(data.draw(st.tuples(st.integers(0, steps), st.integers(0, steps))))
    part = slice(first, last + 1), slice(left * weight.step, (right + 1) * weight.step)
    np.testing.assert_allclose(weight.read(stored, *part).dequantized(), wanted[part], rtol=1e-6)


def test_missing_scales_are_named() -> None:
    with pytest.raises(CheckpointError, match=r"w\.weight_scale is missing"):
        read(None, Arrays(w__weight=np.zeros((2, 2), np.int8)))


@each_case(
    "tile, shape",
    [(None, (3, 1)), (None, (3,)), ((4, 4), (4, 7)), ((8, 8), (4, 4)), (None, (16, 4, 1))],
)
def test_scales_that_do_not_fit_are_refused_with_both_shapes(
    tile: tuple[int, int] | None, shape: tuple[int, ...]
) -> None:
    stored = Arrays(
        w__weight=np.zeros((OUT, IN), np.int8), w__weight_scale=np.ones(shape, np.float32)
    )
    words = ", ".join(map(str, shape))
    with pytest.raises(CheckpointError, match=rf"\[16, 32\].*\[{words}\]"):
        read(tile, stored)


def test_weights_that_are_no_matrices_are_refused() -> None:
    stored = Arrays(w__weight=np.zeros((2, 4, 4), np.int8), w__weight_scale=np.ones(1, np.float32))
    with pytest.raises(CheckpointError, match=r"w\.weight is \[2, 4, 4\].*must be matrices"):
        read(None, stored)
