"""The common form of quantised weights, for GGUF, GPTQ, AWQ, compressed-tensors, fp8 and MXFP4.

weight = values * scales + offsets, with small integers or float8 as values, and each scale and
offset shared by a block of one row. MXFP4 (OCP Microscaling Formats, 1.0) has float4_e2m1fn values
and powers of two as scales, of 32 columns each.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

FLOAT4 = "float4_e2m1fn"
KINDS = ("int8", "int4", "float8_e4m3fn", FLOAT4)
HALF_BYTES = ("int4", FLOAT4)  # kinds with two values to a byte


@dataclass(frozen=True, slots=True)
class Packing:
    """The quantisation of a tensor of shape [out, in]."""

    kind: str  # the narrowest of KINDS that holds every value
    block: int | None  # columns that share a scale; None: the whole row
    offset: bool  # blocks also have an offset


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """A region of a quantised tensor; its columns are whole blocks."""

    # float8_e4m3fn[..., out, in] or i8: int4 kinds hold -8..7, float4 the bits of each as int4
    values: np.ndarray
    scales: np.ndarray  # f32[..., out, in / block]
    offsets: np.ndarray | None  # f32[..., out, in / block]
    float4: bool = False  # the values are bits

    def dequantized(self) -> np.ndarray:
        values = float4_numbers(self.values) if self.float4 else self.values.astype(np.float32)
        wide = values.reshape(*self.scales.shape, -1) * self.scales[..., None]
        if self.offsets is not None:
            wide += self.offsets[..., None]
        return wide.reshape(self.values.shape)


FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
_FLOAT4 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def float4_numbers(bits: np.ndarray) -> np.ndarray:
    """f32: the float4_e2m1fn of the low four bits of each integer."""
    return _FLOAT4[bits & 15]


def e8m0_numbers(exponents: np.ndarray) -> np.ndarray:
    """f32: two to the power of each u8 less 127; 255 is NaN."""
    return exponents.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
