"""Unpacks GGUF's quantised kinds into small integers with a scale, and maybe an offset, per block.

The `gguf` package also dequantises, but takes 8 to 50 ns per weight (0.4 to 1.5 ns here, on one
core), which is slower than reading it from disk. Its block sizes, grids and sign patterns are used
here, and the tests compare with its results bit for bit. Layouts are those of ggml's `block_*`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from model_server.checkpoints.packed import (
    FLOAT4,
    PackedBlocks,
    Packing,
    e8m0_numbers,
    float4_numbers,
)

# i8[N, B], f32[N, B / block], f32[N, B / block] or None: weight = value * scale + offset.
Unpacked = tuple[np.ndarray, np.ndarray, np.ndarray | None]
_Q = GGMLQuantizationType


def _halves(raw: np.ndarray, start: int) -> np.ndarray:
    """Return f32[N, 1], the float16 at byte `start` of every block."""
    return raw.view(np.float16)[:, start // 2, None].astype(np.float32)


def _bit_fields(packed: np.ndarray, bits: int) -> np.ndarray:
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


# --- Kinds whose weights are looked up in a grid, eight or four at a time (IQ1 to IQ3).
#
# A number points at a line of the grid, others change its signs; IQ1 adds an eighth of the scale or
# subtracts it.


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
    scales = _halves(raw, 0) * (np.float32(0.5) + steps) * np.float32(0.25)
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
    return _halves(raw, 0) * (np.float32(0.5) + _nibbles(steps)) * np.float32(0.25)


def _unpack_iq3_xxs(raw: np.ndarray) -> Unpacked:
    words = _words(raw, 66, 98, np.uint32)
    values = _signed(_lines("IQ3_XXS", raw[:, 2:66]), _EVEN[_spread(words, 7, 4)])
    scales = _halves(raw, 0) * (np.float32(0.5) + (words >> 28)) * np.float32(0.5)
    return values, scales.astype(np.float32), None


def _unpack_iq3_s(raw: np.ndarray) -> Unpacked:
    numbers = raw[:, 2:66] | _spread(raw[:, 66:74], 1, 8).astype(np.uint16) << 8
    values = _signed(_lines("IQ3_S", numbers), raw[:, 74:106])
    return values, _halves(raw, 0) * (1 + 2 * _nibbles(raw[:, 106:110])), None


def _unpack_iq1_s(raw: np.ndarray) -> Unpacked:
    words = _words(raw, 34, 50, np.uint16)
    scales = _halves(raw, 0) * (2 * (words >> 12 & 7) + 1)
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
_GRID_KINDS: Mapping[GGMLQuantizationType, tuple[Packing, _Unpack]] = MappingProxyType(
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


# --- Kinds of four bits that are no whole numbers, and those of three values.
#
# Four bits stand for a float4, or for one of sixteen numbers between -127 and 113 (IQ4).

# ggml's kvalues_iq4nl, the least squares of normally distributed weights.
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def unpack_mxfp4(raw: np.ndarray) -> Unpacked:
    return _float4(raw[:, 1:], 16), e8m0_numbers(raw[:, :1]), None


def unpack_nvfp4(raw: np.ndarray) -> Unpacked:
    return _float4(raw[:, 4:], 8), _UNSIGNED_FLOAT8[raw[:, :4]], None


def _float4(packed: np.ndarray, size: int) -> np.ndarray:
    """i8[N, 2 B]: the bits of each number, -8..7; `size` low halves come before the high ones."""
    bits = _bit_fields(np.ascontiguousarray(packed).reshape(len(packed), -1, size), 4)
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
    return _IQ4[_bit_fields(raw[:, 2:], 4).reshape(-1, 32)], _halves(raw, 0), None


def unpack_iq4_xs(raw: np.ndarray) -> Unpacked:
    low = np.stack([raw[:, 4:8] & 15, raw[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    words = np.ascontiguousarray(raw[:, 2:4]).view(np.uint16)
    high = (words >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    steps = (low | high << 4).view(np.int8) - np.int8(32)
    bits = _bit_fields(raw[:, 8:].reshape(-1, 8, 16), 4)
    return _IQ4[bits.reshape(-1, 256)], steps * _halves(raw, 0), None


def unpack_tq1_0(raw: np.ndarray) -> Unpacked:
    """Five values to a byte, in base three as a fraction of 256; four in the last bytes."""
    parts = ((raw[:, :32], 5), (raw[:, 32:48], 5), (raw[:, 48:52], 4))
    values = np.concatenate([_thirds(packed, count) for packed, count in parts], axis=1)
    return values, _halves(raw, 52), None


def _thirds(packed: np.ndarray, count: int) -> np.ndarray:
    """i8[N, count * n], -1..1: the first digits of all bytes, then the second, ..."""
    factors = 3 ** np.arange(count, dtype=np.uint8)[:, None]
    rests = packed[:, None] * factors  # modulo 256
    digits = (rests.astype(np.uint16) * 3 >> 8).astype(np.int8) - np.int8(1)
    return digits.reshape(len(packed), -1)


def unpack_tq2_0(raw: np.ndarray) -> Unpacked:
    values = _bit_fields(raw[:, :64].reshape(-1, 2, 32), 2).reshape(-1, 256).view(np.int8)
    values -= np.int8(1)
    return values, _halves(raw, 64), None


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The storage layout of one quantised kind."""

    size: int  # weights per block
    nbytes: int  # bytes per block
    packing: Packing
    unpack: Callable[[np.ndarray], Unpacked]  # u8[N, nbytes] -> values as in llama.cpp
    lowest: int  # subtracted from the values so that they fit the packing's kind

    def dequantize(self, raw: np.ndarray, out: np.ndarray) -> None:
        """Dequantise u8[N, nbytes] into f32[N, size], with llama.cpp's rounding."""
        with np.errstate(all="ignore"):  # a damaged file may hold any scale
            values, scales, offsets = self.unpack(raw)
            out[...] = float4_numbers(values) if self.is_float4 else values
            parts = out.reshape(*scales.shape, -1)
            parts *= scales[..., None]
            if offsets is not None:
                parts += offsets[..., None]

    def pack(self, raw: np.ndarray) -> PackedBlocks:
        """Repack u8[N, nbytes] as N rows of one block each."""
        with np.errstate(all="ignore"):
            values, scales, offsets = self.unpack(raw)
            if self.lowest:
                assert offsets is not None
                values -= np.int8(self.lowest)
                offsets += self.lowest * scales
        return PackedBlocks(values, scales, offsets, float4=self.is_float4)

    @property
    def is_float4(self) -> bool:
        return self.packing.kind == FLOAT4


def _q4(packed: np.ndarray) -> np.ndarray:
    """u8[N, 16] -> u8[N, 32], 0..15."""
    return _bit_fields(packed, 4).reshape(-1, 32)


# Maps a byte with the fifth bits of eight weights to a u64 with 16 in the byte of each set bit.
_FIFTH_BITS = (
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") << 4
).view(np.uint64)[:, 0]


def _q5(high: np.ndarray, packed: np.ndarray) -> np.ndarray:
    """u8[N, 4] with the fifth bits and u8[N, 16] -> u8[N, 32], 0..31."""
    values = _q4(packed)
    wide = values.view(np.uint64)
    wide |= _FIFTH_BITS[high]
    return values


def _unpack_q4_0(raw: np.ndarray) -> Unpacked:
    values = _q4(raw[:, 2:]).view(np.int8)
    values -= np.int8(8)
    return values, _halves(raw, 0), None


def _unpack_q4_1(raw: np.ndarray) -> Unpacked:
    return _q4(raw[:, 4:]).view(np.int8), _halves(raw, 0), _halves(raw, 2)


def _unpack_q5_0(raw: np.ndarray) -> Unpacked:
    values = _q5(raw[:, 2:6], raw[:, 6:]).view(np.int8)
    values -= np.int8(16)
    return values, _halves(raw, 0), None


def _unpack_q5_1(raw: np.ndarray) -> Unpacked:
    return _q5(raw[:, 4:8], raw[:, 8:]).view(np.int8), _halves(raw, 0), _halves(raw, 2)


def _unpack_q8_0(raw: np.ndarray) -> Unpacked:
    return np.ascontiguousarray(raw[:, 2:]).view(np.int8), _halves(raw, 0), None


def _q2(packed: np.ndarray) -> np.ndarray:
    """u8[N, 64] -> u8[N, 256], 0..3."""
    return _bit_fields(packed.reshape(-1, 2, 32), 2).reshape(-1, 256)


def _unpack_q2_k(raw: np.ndarray) -> Unpacked:
    steps = raw[:, :16]
    scales = (steps & 15) * _halves(raw, 80)
    offsets = (steps >> 4) * -_halves(raw, 82)
    return _q2(raw[:, 16:80]).view(np.int8), scales, offsets


def _unpack_q3_k(raw: np.ndarray) -> Unpacked:
    values = _q2(raw[:, 32:96])
    high = _bit_fields(raw[:, :32], 1).reshape(-1, 256)
    high <<= 2
    values |= high
    signed = values.view(np.int8)
    signed -= np.int8(4)  # a clear high bit means minus four
    return signed, _q3_steps(raw[:, 96:108]) * _halves(raw, 108), None


def _q3_steps(packed: np.ndarray) -> np.ndarray:
    """u8[N, 12] -> i8[N, 16]: six bits each, minus 32; the low four bits are stored first."""
    steps = _bit_fields(packed[:, :8], 4).reshape(-1, 4, 4)
    for place in range(4):
        steps[:, place] |= (packed[:, 8:] >> (2 * place) & 3) << 4
    return steps.reshape(-1, 16).view(np.int8) - np.int8(32)


def _k_steps(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """u8[N, 12] -> two u8[N, 8], 0..63: multipliers of a block's scale and its offset."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=1)
    offsets = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=1)
    return scales, offsets


def _k_scales(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scales and offsets of Q4_K and Q5_K, f32[N, 8] each."""
    scales, offsets = _k_steps(raw[:, 4:16])
    return scales * _halves(raw, 0), offsets * -_halves(raw, 2)


def _unpack_q4_k(raw: np.ndarray) -> Unpacked:
    values = _bit_fields(raw[:, 16:].reshape(-1, 4, 32), 4)
    return values.reshape(-1, 256).view(np.int8), *_k_scales(raw)


def _unpack_q5_k(raw: np.ndarray) -> Unpacked:
    values = _bit_fields(raw[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 256)
    high = _bit_fields(raw[:, 16:48], 1).reshape(-1, 256)
    high <<= 4
    values |= high
    return values.view(np.int8), *_k_scales(raw)


def _unpack_q6_k(raw: np.ndarray) -> Unpacked:
    values = _bit_fields(raw[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 256)
    high = _bit_fields(raw[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 256)
    high <<= 4
    values |= high
    signed = values.view(np.int8)
    signed -= np.int8(32)
    steps = np.ascontiguousarray(raw[:, 192:208]).view(np.int8)
    return signed, steps * _halves(raw, 208), None


def _kind(
    of: GGMLQuantizationType,
    packing: Packing,
    unpack: Callable[[np.ndarray], Unpacked],
    lowest: int = 0,
) -> BlockFormat:
    size, nbytes = GGML_QUANT_SIZES[of]
    return BlockFormat(size, nbytes, packing, unpack, lowest)


KINDS: Mapping[GGMLQuantizationType, BlockFormat] = MappingProxyType(
    {
        _Q.Q4_0: _kind(_Q.Q4_0, Packing("int4", 32, offset=False), _unpack_q4_0),
        _Q.Q4_1: _kind(_Q.Q4_1, Packing("int4", 32, offset=True), _unpack_q4_1, lowest=8),
        _Q.Q5_0: _kind(_Q.Q5_0, Packing("int8", 32, offset=False), _unpack_q5_0),
        _Q.Q5_1: _kind(_Q.Q5_1, Packing("int8", 32, offset=True), _unpack_q5_1),
        _Q.Q8_0: _kind(_Q.Q8_0, Packing("int8", 32, offset=False), _unpack_q8_0),
        _Q.Q2_K: _kind(_Q.Q2_K, Packing("int4", 16, offset=True), _unpack_q2_k),
        _Q.Q3_K: _kind(_Q.Q3_K, Packing("int4", 16, offset=False), _unpack_q3_k),
        _Q.Q4_K: _kind(_Q.Q4_K, Packing("int4", 32, offset=True), _unpack_q4_k, lowest=8),
        _Q.Q5_K: _kind(_Q.Q5_K, Packing("int8", 32, offset=True), _unpack_q5_k),
        _Q.Q6_K: _kind(_Q.Q6_K, Packing("int8", 16, offset=False), _unpack_q6_k),
        _Q.MXFP4: _kind(_Q.MXFP4, Packing(FLOAT4, 32, offset=False), unpack_mxfp4),
        _Q.NVFP4: _kind(_Q.NVFP4, Packing(FLOAT4, 16, offset=False), unpack_nvfp4),
        _Q.TQ1_0: _kind(_Q.TQ1_0, Packing("int4", 256, offset=False), unpack_tq1_0),
        _Q.TQ2_0: _kind(_Q.TQ2_0, Packing("int4", 256, offset=False), unpack_tq2_0),
        _Q.IQ4_NL: _kind(_Q.IQ4_NL, Packing("int8", 32, offset=False), unpack_iq4_nl),
        _Q.IQ4_XS: _kind(_Q.IQ4_XS, Packing("int8", 32, offset=False), unpack_iq4_xs),
        **{of: _kind(of, packing, unpack) for of, (packing, unpack) in _GRID_KINDS.items()},
    }
)
