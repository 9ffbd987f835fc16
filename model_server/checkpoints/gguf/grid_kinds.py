"""Unpacks GGUF's kinds whose weights are looked up in a grid, eight or four at a time (IQ1 to IQ3).

A number points at a line of the grid, others change its signs; IQ1 adds an eighth of the scale or
subtracts it. Grids and sign patterns are those of the `gguf` package; layouts are those of ggml's
`block_iq*`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType

from model_server.checkpoints.packed import Packing

# i8[N, B], f32[N, B / block], f32[N, B / block] or None: weight = value * scale + offset.
Unpacked = tuple[np.ndarray, np.ndarray, np.ndarray | None]
_Q = GGMLQuantizationType


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


@cache
def _grid(kind: str) -> np.ndarray:
    """Return the lines of a grid: each eight int8 in a u64, or four in a u32."""
    of = getattr(quants, kind)
    of.init_grid()
    lines = of.grid.reshape(of.grid_shape).astype(np.int8)
    return lines.view(np.uint64 if lines.shape[1] == 8 else np.uint32)[:, 0]


def _lines(kind: str, numbers: np.ndarray) -> np.ndarray:
    """i8[N, 256]: the lines of a grid."""
    return _grid(kind)[numbers].view(np.int8).reshape(len(numbers), -1)


# u64[256]: for each byte of signs eight int8, -1 where a bit is set.
_NEGATIVE = (
    -np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view(np.int8)
).view(np.uint64)[:, 0]
# u8[128]: seven bits of signs, and an eighth so that an even number is set.
_EVEN = np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)


def _signed(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Negate in place the int8 whose bits of u8[N, 32] are set."""
    masks = _NEGATIVE[signs].view(np.int8).reshape(values.shape)
    values ^= masks
    values -= masks
    return values


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """u8[N, n] -> u8[N, 2 n]: the low half of each byte, then its high half."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


def _spread(packed: np.ndarray, bits: int, shifts: int) -> np.ndarray:
    """[N, n] -> [N, n * shifts]: `bits` each of a word, from the lowest on."""
    by = np.arange(0, bits * shifts, bits, dtype=packed.dtype)
    return (packed[..., None] >> by & packed.dtype.type((1 << bits) - 1)).reshape(len(packed), -1)


def _words(raw: np.ndarray, start: int, stop: int, dtype: type) -> np.ndarray:
    return np.ascontiguousarray(raw[:, start:stop]).view(dtype)


def _unpack_iq2_xxs(raw: np.ndarray) -> Unpacked:
    words = _words(raw, 2, 66, np.uint32).reshape(-1, 8, 2)
    numbers = np.ascontiguousarray(words[..., 0]).view(np.uint8)
    signs, steps = _EVEN[_spread(words[..., 1], 7, 4)], words[..., 1] >> 28
    scales = halves(raw, 0) * (np.float32(0.5) + steps) * np.float32(0.25)
    return _signed(_lines("IQ2_XXS", numbers), signs), scales.astype(np.float32), None


def _unpack_iq2_xs(raw: np.ndarray) -> Unpacked:
    words = _words(raw, 2, 66, np.uint16)
    values = _signed(_lines("IQ2_XS", words & 511), _EVEN[words >> 9])
    return values, _quarters(raw, raw[:, 66:74]), None


def _unpack_iq2_s(raw: np.ndarray) -> Unpacked:
    numbers = raw[:, 2:34] | _spread(raw[:, 66:74], 2, 4).astype(np.uint16) << 8
    values = _signed(_lines("IQ2_S", numbers), raw[:, 34:66])
    return values, _quarters(raw, raw[:, 74:82]), None


def _quarters(raw: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """f32[N, 16]: scales of IQ2, a quarter of a half more than each step."""
    return halves(raw, 0) * (np.float32(0.5) + _nibbles(steps)) * np.float32(0.25)


def _unpack_iq3_xxs(raw: np.ndarray) -> Unpacked:
    words = _words(raw, 66, 98, np.uint32)
    values = _signed(_lines("IQ3_XXS", raw[:, 2:66]), _EVEN[_spread(words, 7, 4)])
    scales = halves(raw, 0) * (np.float32(0.5) + (words >> 28)) * np.float32(0.5)
    return values, scales.astype(np.float32), None


def _unpack_iq3_s(raw: np.ndarray) -> Unpacked:
    numbers = raw[:, 2:66] | _spread(raw[:, 66:74], 1, 8).astype(np.uint16) << 8
    values = _signed(_lines("IQ3_S", numbers), raw[:, 74:106])
    return values, halves(raw, 0) * (1 + 2 * _nibbles(raw[:, 106:110])), None


def _unpack_iq1_s(raw: np.ndarray) -> Unpacked:
    words = _words(raw, 34, 50, np.uint16)
    scales = halves(raw, 0) * (2 * (words >> 12 & 7) + 1)
    numbers = raw[:, 2:34] | _spread(words, 3, 4) << 8
    offsets = scales * np.where(words & 0x8000, np.float32(-0.125), np.float32(0.125))
    return _lines("IQ1_S", numbers), scales, offsets


def _unpack_iq1_m(raw: np.ndarray) -> Unpacked:
    """Each eight weights add or subtract an eighth, so values count eighths here."""
    words = _words(raw, 48, 56, np.uint16)
    tops = words >> 12 << np.array([0, 4, 8, 12], np.uint16)  # four bits of the scale in each
    whole = np.bitwise_or.reduce(tops, axis=1).view(np.float16).astype(np.float32)
    scales = whole[:, None] * (2 * _spread(words, 3, 4) + 1) * np.float32(0.125)
    high = _nibbles(raw[:, 32:48])
    values = _lines("IQ1_S", raw[:, :32] | (high & 7).astype(np.uint16) << 8)
    values *= 8
    values.reshape(len(raw), 32, 8)[...] += np.where(high & 8, np.int8(-1), np.int8(1))[..., None]
    return values, scales.astype(np.float32), None


_INT8_16, _INT8_32 = Packing("int8", 16, offset=False), Packing("int8", 32, offset=False)
_Unpack = Callable[[np.ndarray], Unpacked]
GRID_KINDS: Mapping[GGMLQuantizationType, tuple[Packing, _Unpack]] = MappingProxyType(
    {
        _Q.IQ1_S: (Packing("int4", 32, offset=True), _unpack_iq1_s),
        _Q.IQ1_M: (_INT8_16, _unpack_iq1_m),
        _Q.IQ2_XXS: (_INT8_32, _unpack_iq2_xxs),
        _Q.IQ2_XS: (_INT8_16, _unpack_iq2_xs),
        _Q.IQ2_S: (_INT8_16, _unpack_iq2_s),
        _Q.IQ3_XXS: (_INT8_32, _unpack_iq3_xxs),
        _Q.IQ3_S: (_INT8_32, _unpack_iq3_s),
    }
)
