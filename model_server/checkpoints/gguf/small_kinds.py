"""Unpacks GGUF's kinds of four bits that are no whole numbers, and those of three values.

Four bits stand for a float4, or for one of sixteen numbers between -127 and 113 (IQ4). Layouts are
those of ggml's `block_*`.
"""

from __future__ import annotations

import numpy as np

from model_server.checkpoints.gguf.bits import Unpacked, bit_fields, halves
from model_server.checkpoints.packed import e8m0_numbers

# ggml's kvalues_iq4nl, the least squares of normally distributed weights.
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def unpack_mxfp4(raw: np.ndarray) -> Unpacked:
    return _float4(raw[:, 1:], 16), e8m0_numbers(raw[:, :1]), None


def unpack_nvfp4(raw: np.ndarray) -> Unpacked:
    return _float4(raw[:, 4:], 8), _UNSIGNED_FLOAT8[raw[:, :4]], None


def _float4(packed: np.ndarray, size: int) -> np.ndarray:
    """i8[N, 2 B]: the bits of each number, -8..7; `size` low halves come before the high ones."""
    bits = bit_fields(np.ascontiguousarray(packed).reshape(len(packed), -1, size), 4)
    return (bits.reshape(len(packed), -1) << 4).view(np.int8) >> 4


def _unsigned_float8() -> np.ndarray:
    """f32[256]: four bits of exponent, three of mantissa; the first bit does not count."""
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, (bits & 7).astype(np.float64)
    numbers = np.where(
        exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * np.exp2(exponent - 7.0)
    )
    return np.where(bits == 0x7F, 0, numbers).astype(np.float32)  # 0x7F is no number


_UNSIGNED_FLOAT8 = _unsigned_float8()


def unpack_iq4_nl(raw: np.ndarray) -> Unpacked:
    return _IQ4[bit_fields(raw[:, 2:], 4).reshape(-1, 32)], halves(raw, 0), None


def unpack_iq4_xs(raw: np.ndarray) -> Unpacked:
    low = np.stack([raw[:, 4:8] & 15, raw[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    words = np.ascontiguousarray(raw[:, 2:4]).view(np.uint16)
    high = (words >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    steps = (low | high << 4).view(np.int8) - np.int8(32)
    bits = bit_fields(raw[:, 8:].reshape(-1, 8, 16), 4)
    return _IQ4[bits.reshape(-1, 256)], steps * halves(raw, 0), None


def unpack_tq1_0(raw: np.ndarray) -> Unpacked:
    """Five values to a byte, in base three as a fraction of 256; four in the last bytes."""
    parts = ((raw[:, :32], 5), (raw[:, 32:48], 5), (raw[:, 48:52], 4))
    values = np.concatenate([_thirds(packed, count) for packed, count in parts], axis=1)
    return values, halves(raw, 52), None


def _thirds(packed: np.ndarray, count: int) -> np.ndarray:
    """i8[N, count * n], -1..1: the first digits of all bytes, then the second, ..."""
    factors = 3 ** np.arange(count, dtype=np.uint8)[:, None]
    rests = packed[:, None] * factors  # modulo 256
    digits = (rests.astype(np.uint16) * 3 >> 8).astype(np.int8) - np.int8(1)
    return digits.reshape(len(packed), -1)


def unpack_tq2_0(raw: np.ndarray) -> Unpacked:
    values = bit_fields(raw[:, :64].reshape(-1, 2, 32), 2).reshape(-1, 256).view(np.int8)
    values -= np.int8(1)
    return values, halves(raw, 64), None
