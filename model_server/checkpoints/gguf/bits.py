"""Bits of blocks: half-precision numbers, and small numbers packed into bytes."""

from __future__ import annotations

import numpy as np

# i8[N, B], f32[N, B / block], f32[N, B / block] or None: weight = value * scale + offset.
Unpacked = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def halves(raw: np.ndarray, start: int) -> np.ndarray:
    """Return f32[N, 1], the float16 at byte `start` of every block."""
    return raw.view(np.float16)[:, start // 2, None].astype(np.float32)


def bit_fields(packed: np.ndarray, bits: int) -> np.ndarray:
    """Split u8[..., n] into u8[..., 8 / bits, n]: the lowest bits of all bytes, then the next, ...

    n must be a multiple of 8. numpy is slow on short rows, so eight bytes are masked at once as one
    u64, and results are stored in units of 8 bytes, or of 16 (complex128, only ever copied).
    """
    *outer, n = packed.shape
    unit = np.complex128 if n % 16 == 0 else np.uint64
    words = np.ascontiguousarray(packed.view(unit)).view(np.uint64)
    mask = np.uint64((2**bits - 1) * 0x0101010101010101)
    values = np.empty((*outer, 8 // bits, n), np.uint8)
    into = values.view(unit)
    for place in range(8 // bits):
        field = words >> np.uint64(bits * place)
        field &= mask
        for column in range(into.shape[-1]):
            into[..., place, column] = field.view(unit)[..., column]
    return values
