"""Stored tensors in memory, and numbers packed into words one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_server.checkpoints.region import Region

_NAMES = {
    "int32": "I32", "int64": "I64", "int8": "I8", "uint8": "U8", "float16": "F16",
    "float32": "F32", "float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


class Arrays:
    """Stored tensors in memory, by name; two underscores are a dot."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = {name.replace("__", "."): array for name, array in arrays.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        return {name: _NAMES[str(array.dtype)] for name, array in self.arrays.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def read(self, name: str, region: Region | None = None) -> np.ndarray:
        return self.arrays[name][region or ...]


def words_along_rows(
    numbers: np.ndarray, bits: int, order: tuple[int, ...] | None = None
) -> np.ndarray:
    """i32: number c of a row begins at bit c * bits, or at a place of the order within its word."""
    rows, columns = numbers.shape
    words = np.zeros((rows, -(-columns * bits // 32)), np.uint64)
    for row in range(rows):
        for column in range(columns):
            place = column if order is None else column // 8 * 8 + order[column % 8]
            word, shift = divmod(place * bits, 32)
            number = int(numbers[row, column]) << shift
            words[row, word] |= np.uint64(number & 0xFFFFFFFF)
            if number >> 32:
                words[row, word + 1] |= np.uint64(number >> 32)
    return words.astype(np.uint32).view(np.int32)


def whole_read(weight: Any, stored: Any) -> np.ndarray:
    """f32[out, in]: all of a weight."""
    rows, columns = weight.shape
    return weight.read(stored, slice(0, rows), slice(0, columns)).dequantized()
