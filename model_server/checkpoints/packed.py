"""The common form of quantised weights, for GGUF, GPTQ, AWQ, compressed-tensors and fp8.

weight = values * scales + offsets, with small integers or float8 as values, and each scale and
offset shared by a block of one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

KINDS = ("int8", "int4", "float8_e4m3fn")


@dataclass(frozen=True, slots=True)
class Packing:
    """The quantisation of a tensor of shape [out, in]."""

    kind: str  # the narrowest of KINDS that holds every value
    block: int | None  # columns that share a scale; None: the whole row
    offset: bool  # blocks also have an offset


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """A region of a quantised tensor; its columns are whole blocks."""

    values: np.ndarray  # i8[out, in] (int4 kinds hold -8..7) or float8_e4m3fn[out, in]
    scales: np.ndarray  # f32[out, in / block]
    offsets: np.ndarray | None  # f32[out, in / block]

    def dequantized(self) -> np.ndarray:
        rows, blocks = self.scales.shape
        values = self.values.astype(np.float32).reshape(rows, blocks, -1)
        wide = values * self.scales[..., None]
        if self.offsets is not None:
            wide += self.offsets[..., None]
        return wide.reshape(self.values.shape)


FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
