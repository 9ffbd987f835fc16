"""Float8 and int8 weights give the numbers they were made from, whole and region by region; MXFP4
weights those of the gguf package, which reads them in another order.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.checkpoints.huggingface.prequantized.scaled_weight import (
    PACKING,
    float8_weights,
    mxfp4_weights,
)
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


def bytes_of_float4() -> Made:
    """DeepSeek-V4's experts, whose scales lie beside the weight."""
    codes = np.random.default_rng(3).integers(0, 16, (OUT, 2 * IN), np.uint8)
    scales = np.random.default_rng(1).integers(120, 130, (OUT, 2)).astype(np.uint8)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).view(np.int8)
    stored = Arrays(w__weight=packed, w__scale=scales.view(ml_dtypes.float8_e8m0fnu))
    numbers = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    return None, stored, numbers * np.exp2(np.repeat(scales.astype(np.float32) - 127, IN, axis=1))


def beside() -> Made:
    tile, stored, wanted = blocks(4, 8)
    return tile, Arrays(w__weight=values(), w__scale=stored.read("w.weight_scale_inv")), wanted


CASES: dict[str, tuple[Made, Packing | None]] = {
    "square blocks": (blocks(6, 8), Packing(FLOAT8, 8, False)),
    "square blocks that are cut off": (blocks(6, 24), None),
    "one block": (blocks(128, 128), Packing(FLOAT8, None, False)),
    "a scale for all": (rows(ml_dtypes.float8_e4m3fn, 1), Packing(FLOAT8, None, False)),
    "a scalar": (rows(ml_dtypes.float8_e4m3fn), Packing(FLOAT8, None, False)),
    "rows": (rows(ml_dtypes.float8_e4m3fn, OUT, 1), Packing(FLOAT8, None, False)),
    "rows in a vector": (rows(np.int8, OUT), Packing("int8", None, False)),
    "exponents": (exponents(), Packing(FLOAT8, 16, False)),
    "scales beside the weight": (beside(), Packing(FLOAT8, 8, False)),
    "float4 in bytes": (bytes_of_float4(), PACKING),
}


def read(tile: tuple[int, int] | None, stored: Any) -> Any:
    return float8_weights(tile, stored.dtypes, stored)["w.weight"]


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


E, ROWS, BLOCKS = 3, 6, 2
RNG = np.random.default_rng(5)
NIBBLES = RNG.integers(0, 16, (E, ROWS, BLOCKS, 32), np.uint8)
# Far enough apart to tell scales from one another; all bits would make most numbers zero.
SCALES = RNG.integers(110, 140, (E, ROWS, BLOCKS), np.uint8)


class Float4Arrays:
    """The stored tensors of a checkpoint, in memory."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = {f"w_{name}": array for name, array in arrays.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        return {name: {"uint8": "U8"}.get(str(a.dtype), "F32") for name, a in self.arrays.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def read(self, name: str, region: Any = ()) -> np.ndarray:
        return self.arrays[name][region]


def stored(**changes: np.ndarray) -> Any:
    blocks = NIBBLES[..., ::2] | NIBBLES[..., 1::2] << 4
    return Float4Arrays(**{"blocks": blocks, "scales": SCALES} | changes)


def weight_of(tensors: Any) -> Any:
    return mxfp4_weights({}, tensors.dtypes, tensors)["w"]


def by_gguf() -> np.ndarray:
    """f32[E, ROWS, IN]: there the low halves of 16 bytes are the first 16 numbers of a block."""
    halves = NIBBLES.reshape(-1, 2, 16)
    raw = np.concatenate([SCALES.reshape(-1, 1), halves[:, 0] | halves[:, 1] << 4], axis=1)
    return dequantize(raw, GGMLQuantizationType.MXFP4).reshape(E, ROWS, BLOCKS * 32)


def test_the_numbers_are_the_gguf_packages() -> None:
    tensors = stored()
    weight = weight_of(tensors)
    assert (weight.shape, weight.packing) == ((E, ROWS, BLOCKS * 32), PACKING)
    region = (slice(0, E), slice(0, ROWS), slice(0, 64))
    np.testing.assert_array_equal(weight.read(tensors, *region).dequantized(), by_gguf())


@given(expert=st.integers(0, E - 1), first=st.integers(0, 1), block=st.integers(0, BLOCKS - 1))
def test_every_other_row_of_an_expert_is_read_alone(expert: int, first: int, block: int) -> None:
    tensors = stored()
    columns = slice(32 * block, 32 * block + 32)
    region = (slice(expert, expert + 1), slice(first, ROWS, 2), columns)
    read = weight_of(tensors).read(tensors, *region)
    np.testing.assert_array_equal(read.dequantized(), by_gguf()[region])
    assert read.values.min() >= -8
    assert read.values.max() <= 7


def test_a_scale_that_is_no_number_makes_none() -> None:
    tensors = stored(scales=np.full_like(SCALES, 255))
    read = weight_of(tensors).read(tensors, slice(0, 1), slice(0, 1), slice(0, 32))
    assert np.isnan(read.dequantized()).all()


@each_case(
    "changes, words",
    [
        ({"scales": SCALES.astype(np.float32)}, "scales are F32"),
        ({"scales": SCALES[:, :, :1]}, r"scales are \[3, 6, 1\]"),
        ({"blocks": NIBBLES[..., :8]}, r"w_blocks is \[3, 6, 2, 8\]"),
    ],
)
def test_tensors_that_do_not_fit_are_named(changes: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        weight_of(stored(**changes))


def test_missing_scales_of_blocks_are_named() -> None:
    tensors = stored()
    del tensors.arrays["w_scales"]
    with pytest.raises(CheckpointError, match="w_blocks has no w_scales"):
        weight_of(tensors)
