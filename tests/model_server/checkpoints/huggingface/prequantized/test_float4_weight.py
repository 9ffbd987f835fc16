"""MXFP4 weights against the gguf package, which reads the same numbers in another order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.huggingface.prequantized.scaled_weight import PACKING, mxfp4_weights
from sax.errors import CheckpointError
from tests.each_case import each_case

E, OUT, BLOCKS = 3, 6, 2
RNG = np.random.default_rng(5)
NIBBLES = RNG.integers(0, 16, (E, OUT, BLOCKS, 32), np.uint8)
# Far enough apart to tell scales from one another; all bits would make most numbers zero.
SCALES = RNG.integers(110, 140, (E, OUT, BLOCKS), np.uint8)


class Arrays:
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
    return Arrays(**{"blocks": blocks, "scales": SCALES} | changes)


def weight_of(tensors: Any) -> Any:
    return mxfp4_weights({}, tensors.dtypes, tensors)["w"]


def by_gguf() -> np.ndarray:
    """f32[E, OUT, IN]: there the low halves of 16 bytes are the first 16 numbers of a block."""
    halves = NIBBLES.reshape(-1, 2, 16)
    raw = np.concatenate([SCALES.reshape(-1, 1), halves[:, 0] | halves[:, 1] << 4], axis=1)
    return dequantize(raw, GGMLQuantizationType.MXFP4).reshape(E, OUT, BLOCKS * 32)


def test_the_numbers_are_the_gguf_packages() -> None:
    tensors = stored()
    weight = weight_of(tensors)
    assert (weight.shape, weight.packing) == ((E, OUT, BLOCKS * 32), PACKING)
    region = (slice(0, E), slice(0, OUT), slice(0, 64))
    np.testing.assert_array_equal(weight.read(tensors, *region).dequantized(), by_gguf())


@given(expert=st.integers(0, E - 1), first=st.integers(0, 1), block=st.integers(0, BLOCKS - 1))
def test_every_other_row_of_an_expert_is_read_alone(expert: int, first: int, block: int) -> None:
    tensors = stored()
    columns = slice(32 * block, 32 * block + 32)
    region = (slice(expert, expert + 1), slice(first, OUT, 2), columns)
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


def test_missing_scales_are_named() -> None:
    tensors = stored()
    del tensors.arrays["w_scales"]
    with pytest.raises(CheckpointError, match="w_blocks has no w_scales"):
        weight_of(tensors)
