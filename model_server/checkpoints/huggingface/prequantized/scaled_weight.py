"""Int8, float8 or float4 values with scales: per row, per block or for all of a tensor.

NAME I8 or F8_E4M3 [out, in] with NAME_scale, or NAME_scale_inv as DeepSeek-V3 calls it, or scale
in place of weight as V4 does, of [], [1], [out], [out, groups] or [out / a, in / b]; bytes as
scales are exponents (MXFP8). NAME_zero_point, if the scheme is not symmetric, has the shape of the
scales.

Float4 values are bytes [out, in / 2], the low half first. MXFP4 has exponents as scales, of 32
columns each. NVFP4 has float8 scales, of 16 columns each, and one for the whole tensor, which
multiplies (modelopt) or divides (compressed-tensors) them. Their product needs more bits than the
bfloat16 that scales of float4 have on the device, so NVFP4 is held as int8: twice its values, up to
12.

gpt-oss stores the experts of a layer together: NAME_blocks u8[E, out, in / 32, 16] holds two values
to a byte, and NAME_scales u8[E, out, in / 32] the exponent of each block plus 127.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.huggingface.prequantized.column_weight import ColumnGroups
from model_server.checkpoints.huggingface.prequantized.packed_weight import (
    PackedWeight,
    check_shape,
    matrix_shape,
)
from model_server.checkpoints.huggingface.prequantized.scheme import WeightScheme
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import (
    FLOAT4,
    FLOAT8,
    PackedBlocks,
    Packing,
    e8m0_numbers,
    float4_numbers,
)
from sax.errors import CheckpointError

_VALUES = {"F8_E4M3": FLOAT8.name, "I8": "int8"}
_MX, _NV = 32, 16  # columns of a block
_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK = 32
PACKING = Packing(FLOAT4, _BLOCK, False)


@dataclass(frozen=True, slots=True)
class ScaledWeight(PackedWeight):
    name: str
    scales: str
    zeros: str | None
    shape: tuple[int, int]
    kind: str
    height: int  # rows that share a scale
    groups: ColumnGroups

    @property
    def packing(self) -> Packing | None:
        return self.groups.packing(self.kind, self.zeros is not None)

    def read(self, stored: StoredTensors, *region: slice) -> PackedBlocks:
        rows, columns = region
        values = stored.read(self.name, (rows, columns))
        scales = self._spread(stored, self.scales, rows, columns)
        if self.zeros is None:
            return PackedBlocks(values, scales, None)
        return PackedBlocks(
            values, scales, -self._spread(stored, self.zeros, rows, columns) * scales
        )

    def _spread(self, stored: StoredTensors, name: str, rows: slice, columns: slice) -> np.ndarray:
        """Return f32[rows, blocks]; what a block of rows shares is repeated for each of them."""
        first, last = rows.start // self.height, -(-rows.stop // self.height)
        part = (slice(first, last),) if stored.shape(name) else None
        found = scale_numbers(stored.read(name, part)).reshape(-1, self.groups.count)
        wanted = np.arange(rows.start, rows.stop) // self.height - first
        return found[wanted][:, self.groups.of(columns)]


def scale_numbers(scales: np.ndarray) -> np.ndarray:
    """f32: scales as numbers; bytes are exponents."""
    return e8m0_numbers(scales) if scales.dtype == np.uint8 else scales.astype(np.float32)


def scaled_weights(
    tile: tuple[int, int] | None, dtypes: Mapping[str, str], stored: StoredTensors
) -> dict[str, PackedWeight]:
    """Return all weights of int8 and float8. Raises CheckpointError if their parts do not fit.

    tile: rows and columns that share a scale where scales are in two dimensions.
    """
    return {
        name: scaled_weight(name, tile, None, dtypes, stored)
        for name, dtype in dtypes.items()
        if dtype in _VALUES and name.endswith(".weight")
    }


def scaled_weight(
    name: str,
    tile: tuple[int, int] | None,
    scheme: WeightScheme | None,
    dtypes: Mapping[str, str],
    stored: StoredTensors,
) -> ScaledWeight:
    shape = matrix_shape(stored, name)
    scales = _scales_of(name, dtypes)
    height, width = _tile(name, shape, stored.shape(scales), tile)
    zeros: str | None = f"{name}_zero_point"
    if zeros not in dtypes:
        if scheme and not scheme.symmetric:
            raise CheckpointError(
                f"tensor {name} has zero points by config.json, and {zeros} is missing: fetch the "
                "checkpoint again"
            )
        zeros = None
    else:
        check_shape(stored, zeros, stored.shape(scales), f"as {scales} is")
    groups = ColumnGroups(shape[1], width)
    return ScaledWeight(name, scales, zeros, shape, _VALUES[dtypes[name]], height, groups)


def _scales_of(name: str, dtypes: Mapping[str, str]) -> str:
    """Return the name of a weight's scales. Raises CheckpointError."""
    ends = (f"{name}_scale_inv", f"{name}_scale", f"{name.removesuffix('weight')}scale")
    if found := next((end for end in ends if end in dtypes), None):
        return found
    raise CheckpointError(
        f"tensor {name} is {dtypes[name]} and {ends[1]} is missing: fetch the checkpoint again"
    )


def float8_weights(
    tile: tuple[int, int] | None, dtypes: Mapping[str, str], stored: StoredTensors
) -> dict[str, PackedWeight]:
    """As `scaled_weights`; bytes with an exponent for each 16 hold float4, as V4's experts do."""

    def found(name: str) -> PackedWeight:
        scales = _scales_of(name, dtypes)
        if dtypes[name] == "I8" and dtypes[scales] in ("U8", "F8_E8M0"):
            rows, halves = matrix_shape(stored, name)
            if stored.shape(scales) == (rows, 2 * halves // _MX):
                return float4_weight(name, scales, None, dtypes, stored)
        return scaled_weight(name, tile, None, dtypes, stored)

    every = (name for name, dtype in dtypes.items() if dtype in _VALUES)
    return {name: found(name) for name in every if name.endswith(".weight")}


def _tile(
    name: str, shape: tuple[int, int], scales: tuple[int, ...], given: tuple[int, int] | None
) -> tuple[int, int]:
    """Return the rows and columns that share a scale."""
    rows, columns = (*scales, 1, 1)[:2]
    if rows * columns == 1 and len(scales) <= 2:
        return shape
    if len(scales) == 2 and given and _counts(shape, given) == scales:
        return min(given[0], shape[0]), min(given[1], shape[1])
    # Vectors have a scale for each output; blocks of a size that is not given divide the weight.
    whole = rows and columns and not shape[0] % rows and not shape[1] % columns
    vector = len(scales) == 1 and rows == shape[0]
    matrix = len(scales) == 2 and (columns == 1 or given is None)
    if not whole or not (vector or matrix):
        raise _misfit(name, shape, scales)
    return shape[0] // rows, shape[1] // columns


def _counts(shape: tuple[int, int], tile: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[0] // tile[0]), -(-shape[1] // tile[1])


def _misfit(name: str, shape: tuple[int, int], scales: tuple[int, ...]) -> CheckpointError:
    return CheckpointError(
        f"tensor {name} is {list(shape)} and its scales are {list(scales)}; they do not match: "
        "fetch the checkpoint again, or use another quantisation of the model"
    )


@dataclass(frozen=True, slots=True)
class Float4Weight(PackedWeight):
    values: str
    scales: str
    whole: str | None  # the tensor's own scale; None: MXFP4
    divides: bool  # the block's scale is divided by it
    shape: tuple[int, int]

    @property
    def packing(self) -> Packing:
        return Packing(FLOAT4, _MX, False) if self.whole is None else Packing("int8", _NV, False)

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.values, self.scales, *([self.whole] if self.whole else []))

    def read(self, stored: StoredTensors, *region: slice) -> PackedBlocks:
        rows, columns = region
        halves = slice(columns.start // 2, columns.stop // 2)
        codes = _int4_codes(stored.read(self.values, (rows, halves))[:, None])
        blocks = slice(columns.start // self.step, columns.stop // self.step)
        scales = scale_numbers(stored.read(self.scales, (rows, blocks)))
        if self.whole is None:
            return PackedBlocks(codes, scales, None, float4=True)
        whole = stored.read(self.whole).astype(np.float32).reshape(())
        with np.errstate(all="ignore"):  # a damaged file may hold any scale
            scales = scales / whole if self.divides else scales * whole
        doubled = (2 * float4_numbers(codes)).astype(np.int8)
        return PackedBlocks(doubled, scales * np.float32(0.5), None)


def float4_weight(
    values: str,
    scales: str,
    whole: str | None,
    dtypes: Mapping[str, str],
    stored: StoredTensors,
    *,
    divides: bool = False,
) -> Float4Weight:
    """Return the weight of these tensors. Raises CheckpointError if they do not fit.

    whole: NVFP4's scale of the whole tensor.
    """
    for name in (scales, *([whole] if whole else [])):
        if name not in dtypes:
            raise CheckpointError(
                f"tensor {values} holds float4 and {name} is missing: fetch the checkpoint again"
            )
    wanted = ("F8_E4M3",) if whole else ("U8", "F8_E8M0")
    if dtypes[values] not in ("U8", "I8") or dtypes[scales] not in wanted:
        raise CheckpointError(
            f"tensor {values} is {dtypes[values]} and {scales} is {dtypes[scales]}; "
            f"{'NVFP4' if whole else 'MXFP4'} has U8 and {' or '.join(wanted)}"
        )
    rows, halves = matrix_shape(stored, values)
    block = _NV if whole else _MX
    if 2 * halves % block:
        raise CheckpointError(
            f"tensor {values} has {2 * halves} numbers a row, which are no whole blocks of {block}"
        )
    check_shape(stored, scales, (rows, 2 * halves // block), f"for blocks of {block} of {values}")
    if whole and stored.shape(whole) not in ((), (1,)):
        check_shape(stored, whole, (1,), f"for all of {values}")
    return Float4Weight(values, scales, whole, divides, (rows, 2 * halves))


@dataclass(frozen=True, slots=True)
class Mxfp4Weight(PackedWeight):
    name: str
    shape: tuple[int, ...]  # [E, out, in]

    @property
    def packing(self) -> Packing:
        return PACKING

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.name + _BLOCKS, self.name + _SCALES)

    def read(self, stored: StoredTensors, *region: slice) -> PackedBlocks:
        *rows, columns = region
        blocks = slice(columns.start // _BLOCK, columns.stop // _BLOCK)
        values, scales = (stored.read(part, (*rows, blocks)) for part in self.parts)
        return PackedBlocks(_int4_codes(values), e8m0_numbers(scales), None, float4=True)


def _int4_codes(packed: np.ndarray) -> np.ndarray:
    """The bits of each value as i8[..., 32 B], -8..7, from u8[..., B, 16]."""
    codes = np.empty((*packed.shape[:-1], packed.shape[-1], 2), np.int8)
    codes[..., 0] = (packed << 4).view(np.int8) >> 4
    codes[..., 1] = packed.view(np.int8) >> 4
    return codes.reshape(*packed.shape[:-2], -1)


def mxfp4_weights(
    config: Mapping[str, Any], dtypes: Mapping[str, str], stored: StoredTensors
) -> dict[str, PackedWeight]:
    """Return the weights that have blocks and scales. Raises CheckpointError if they do not fit."""
    names = [name.removesuffix(_BLOCKS) for name in dtypes if name.endswith(_BLOCKS)]
    return {name: _weight(name, dtypes, stored) for name in names}


def _weight(name: str, dtypes: Mapping[str, str], stored: StoredTensors) -> Mxfp4Weight:
    blocks, scales = name + _BLOCKS, name + _SCALES
    if scales not in dtypes:
        raise CheckpointError(f"tensor {blocks} has no {scales} beside it")
    if (dtypes[blocks], dtypes[scales]) != ("U8", "U8"):
        raise CheckpointError(
            f"tensor {blocks} is {dtypes[blocks]} and its scales are {dtypes[scales]}; "
            "MXFP4 stores both as U8"
        )
    shape, of_scales = stored.shape(blocks), stored.shape(scales)
    if len(shape) != 4 or shape[-1] != _BLOCK // 2 or of_scales != shape[:-1]:
        raise CheckpointError(
            f"tensor {blocks} is {list(shape)} and its scales are {list(of_scales)}; MXFP4 has "
            "blocks [experts, out, in / 32, 16] and scales [experts, out, in / 32]"
        )
    return Mxfp4Weight(name, (*shape[:2], shape[2] * _BLOCK))
