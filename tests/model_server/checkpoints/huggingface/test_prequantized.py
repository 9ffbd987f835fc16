"""Every pre-quantised layout gives the numbers it was made from, whole and region by region.

The packers here are loops over single numbers, written from the formats' descriptions.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.huggingface.prequantized import PackedWeight, packed_weights
from model_server.checkpoints.packed import Packing
from model_server.checkpoints.region import Region
from sax.errors import CheckpointError

OUT, IN, GROUP = 16, 32, 8
RNG = np.random.default_rng(5)
SCALES = RNG.uniform(0.01, 0.1, size=(OUT, IN // GROUP)).astype(np.float16)
UNSIGNED = RNG.integers(0, 16, size=(OUT, IN))
ZEROS = RNG.integers(1, 16, size=(OUT, IN // GROUP))
_NAMES = {"int32": "I32", "int64": "I64", "int8": "I8", "float16": "F16", "float32": "F32"}


class Arrays:
    """Stored tensors in memory."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = {name.replace("__", "."): array for name, array in arrays.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        names = _NAMES | {"float8_e4m3fn": "F8_E4M3"}
        return {name: names[str(array.dtype)] for name, array in self.arrays.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def read(self, name: str, region: Region | None = None) -> np.ndarray:
        return self.arrays[name][region or ...]


def words_along_rows(numbers: np.ndarray, bits: int, order: tuple[int, ...] | None = None):
    """i32: number c of a row is in word c // n at nibble order[c % n]."""
    each = 32 // bits
    words = np.zeros((numbers.shape[0], numbers.shape[1] // each), np.uint64)
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            nibble = (order or range(each))[column % each]
            words[row, column // each] |= np.uint64(int(numbers[row, column]) << (bits * nibble))
    return words.astype(np.uint32).view(np.int32)


def by_group(numbers: np.ndarray) -> np.ndarray:
    return np.repeat(numbers, GROUP, axis=1).astype(np.float32)


def gptq(version: str) -> tuple[dict[str, object], Arrays, np.ndarray]:
    stored_zeros = ZEROS - 1 if version == "gptq" else ZEROS
    arrays = Arrays(
        w__qweight=words_along_rows(UNSIGNED, 4).T.copy(),
        w__qzeros=words_along_rows(stored_zeros.T, 4),
        w__scales=SCALES.T.copy(),
        w__g_idx=(np.arange(IN) // GROUP).astype(np.int32),
    )
    wanted = (UNSIGNED - by_group(ZEROS)) * by_group(SCALES)
    return {"quant_method": "gptq", "bits": 4, "checkpoint_format": version}, arrays, wanted


def awq() -> tuple[dict[str, object], Arrays, np.ndarray]:
    order = (0, 4, 1, 5, 2, 6, 3, 7)
    arrays = Arrays(
        w__qweight=words_along_rows(UNSIGNED.T, 4, order),
        w__qzeros=words_along_rows(ZEROS.T, 4, order),
        w__scales=SCALES.T.copy(),
    )
    wanted = (UNSIGNED - by_group(ZEROS)) * by_group(SCALES)
    return {"quant_method": "awq", "bits": 4}, arrays, wanted


def packed_words(asymmetric: bool) -> tuple[dict[str, object], Arrays, np.ndarray]:
    arrays = Arrays(
        w__weight_packed=words_along_rows(UNSIGNED, 4),
        w__weight_scale=SCALES,
        w__weight_shape=np.array([OUT, IN], np.int64),
    )
    if asymmetric:
        arrays.arrays["w.weight_zero_point"] = words_along_rows(ZEROS.T, 4).T.copy()
        arrays.arrays["w.weight_zero_point"] = words_along_rows(
            np.ascontiguousarray(ZEROS.T), 4
        ).T.copy()
    zeros = by_group(ZEROS) if asymmetric else 8
    wanted = (UNSIGNED - zeros) * by_group(SCALES)
    return {"quant_method": "compressed-tensors", "format": "pack-quantized"}, arrays, wanted


def int8_rows() -> tuple[dict[str, object], Arrays, np.ndarray]:
    values = RNG.integers(-127, 128, size=(OUT, IN)).astype(np.int8)
    scales = RNG.uniform(0.01, 0.1, size=(OUT, 1)).astype(np.float32)
    arrays = Arrays(w__weight=values, w__weight_scale=scales)
    return {"quant_method": "compressed-tensors"}, arrays, values * scales


def float8_tiles() -> tuple[dict[str, object], Arrays, np.ndarray]:
    values = RNG.normal(size=(OUT, IN)).astype(ml_dtypes.float8_e4m3fn)
    scales = RNG.uniform(0.5, 2.0, size=(-(-OUT // 6), IN // 8)).astype(np.float32)
    arrays = Arrays(w__weight=values, w__weight_scale_inv=scales)
    wide = np.repeat(np.repeat(scales, 6, axis=0)[:OUT], 8, axis=1)
    config = {"quant_method": "fp8", "weight_block_size": [6, 8]}
    return config, arrays, values.astype(np.float32) * wide


def float8_whole() -> tuple[dict[str, object], Arrays, np.ndarray]:
    values = RNG.normal(size=(OUT, IN)).astype(ml_dtypes.float8_e4m3fn)
    arrays = Arrays(w__weight=values, w__weight_scale=np.float32([0.25]))
    return {"quant_method": "fp8"}, arrays, values.astype(np.float32) * 0.25


CASES = {
    "gptq": (gptq("gptq"), Packing("int4", GROUP, True)),
    "gptq v2": (gptq("gptq_v2"), Packing("int4", GROUP, True)),
    "awq": (awq(), Packing("int4", GROUP, True)),
    "packed words": (packed_words(False), Packing("int4", GROUP, False)),
    "packed words with zeros": (packed_words(True), Packing("int4", GROUP, True)),
    "int8 rows": (int8_rows(), Packing("int8", None, False)),
    "float8 tiles": (float8_tiles(), Packing("float8_e4m3fn", 8, False)),
    "float8, one scale": (float8_whole(), Packing("float8_e4m3fn", None, False)),
}


def weight_of(config: dict[str, object], stored: Arrays) -> PackedWeight:
    found, used = packed_weights(config, stored.dtypes, stored)
    assert used == set(stored.arrays)
    return found["w.weight"]


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_any_region_gives_the_numbers_it_was_made_from(case: str, data: st.DataObject) -> None:
    (config, stored, wanted), packing = CASES[case]
    weight = weight_of(config, stored)
    assert weight.shape == (OUT, IN)
    assert weight.packing == packing
    block = packing.block or IN
    first, last = sorted(data.draw(st.tuples(st.integers(0, OUT - 1), st.integers(1, OUT))))
    rows = slice(first, max(last, first + 1))
    left, right = sorted(
        data.draw(st.tuples(st.integers(0, IN // block - 1), st.integers(1, IN // block)))
    )
    columns = slice(left * block, max(right, left + 1) * block)
    got = weight.read(stored, rows, columns).dequantized()
    np.testing.assert_allclose(got, wanted[rows, columns], rtol=1e-6, atol=1e-6)


def test_nothing_is_packed_without_a_quantization_config() -> None:
    assert packed_weights(None, {"w.weight": "F32"}, Arrays()) == ({}, set())


def test_an_unknown_method_is_refused_with_a_way_out() -> None:
    with pytest.raises(CheckpointError, match="'hqq'.*QUANTIZE"):
        packed_weights({"quant_method": "hqq"}, {}, Arrays())


def test_reordered_columns_are_refused_by_name() -> None:
    config, stored, _ = gptq("gptq")
    stored.arrays["w.g_idx"] = stored.arrays["w.g_idx"][::-1].copy()
    with pytest.raises(CheckpointError, match=r"w\.g_idx.*desc_act"):
        packed_weights(config, stored.dtypes, stored)


def test_missing_scales_are_named() -> None:
    stored = Arrays(w__weight=np.zeros((2, 2), np.int8))
    with pytest.raises(CheckpointError, match=r"w\.weight_scale is missing"):
        packed_weights({"quant_method": "compressed-tensors"}, stored.dtypes, stored)


def test_scales_that_do_not_fit_are_refused_with_both_shapes() -> None:
    stored = Arrays(
        w__weight=np.zeros((4, 6), np.int8), w__weight_scale=np.zeros((3, 1), np.float32)
    )
    with pytest.raises(CheckpointError, match=r"\[4, 6\].*\[3, 1\]"):
        packed_weights({"quant_method": "compressed-tensors"}, stored.dtypes, stored)
