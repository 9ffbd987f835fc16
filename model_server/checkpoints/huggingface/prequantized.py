"""Reads quantised weights of Hugging Face folders, each made of several stored tensors.

Supports these values of quant_method in config.json's quantization_config:
- fp8, fbgemm_fp8: float8 weights and weight_scale_inv per square block (DeepSeek-V3), or
  weight_scale per row or tensor.
- compressed-tensors: int8 and float8 weights with weight_scale, and pack-quantized weight_packed
  (i32 words of 4- or 8-bit numbers along a row) with weight_scale and perhaps weight_zero_point.
- gptq: qweight (words along a column of [in, out]), qzeros, scales, g_idx; checkpoint_format gptq
  (zeros stored less one) and gptq_v2.
- awq: qweight [in, out / 8] in AWQ's nibble order, qzeros, scales.
- mxfp4: the matrices of all experts of a layer, see `mxfp4`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.huggingface.mxfp4 import mxfp4_weights
from model_server.checkpoints.huggingface.packed_weight import PackedWeight
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import FLOAT8, PackedBlocks, Packing
from sax.errors import CheckpointError

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # which nibble of a word holds column 0, 1, ...


@dataclass(frozen=True, slots=True)
class ScaledWeight(PackedWeight):
    """Int8 or float8 values in one tensor, with scales per row, per block or for all of it."""

    name: str
    scales: str
    shape: tuple[int, int]
    packing: Packing
    tile: tuple[int, int]  # rows and columns that share a scale

    def read(self, stored: StoredTensors, rows: slice, columns: slice) -> PackedBlocks:
        values = stored.read(self.name, (rows, columns))
        return PackedBlocks(values, self._scales(stored, rows, columns), None)

    def _scales(self, stored: StoredTensors, rows: slice, columns: slice) -> np.ndarray:
        """Return f32[rows, blocks]; the scales of square blocks are repeated for every row."""
        down, across = self.tile
        whole = stored.read(self.scales).astype(np.float32).reshape(-1, self._blocks)
        wanted = np.arange(rows.start, rows.stop) // down
        return whole[wanted, columns.start // across : -(-columns.stop // across)]

    @property
    def _blocks(self) -> int:
        return -(-self.shape[1] // self.tile[1])


@dataclass(frozen=True, slots=True)
class WordWeight(PackedWeight):
    """compressed-tensors: words along each row pack values, stored plus half their range."""

    words: str  # i32[out, in * bits / 32]
    scales: str  # [out, groups]
    zeros: str | None  # i32[out * bits / 32, groups]
    bits: int
    shape: tuple[int, int]
    packing: Packing

    def read(self, stored: StoredTensors, rows: slice, columns: slice) -> PackedBlocks:
        each = 32 // self.bits
        first, last = columns.start // each, -(-columns.stop // each)
        wide = unpack_words(stored.read(self.words, (rows, slice(first, last))), self.bits)
        skip = columns.start - first * each
        half = 1 << (self.bits - 1)
        values = wide[:, skip : skip + columns.stop - columns.start].astype(np.int16) - half
        block = self.packing.block or self.shape[1]
        groups = slice(columns.start // block, columns.stop // block)
        scales = stored.read(self.scales, (rows, groups)).astype(np.float32)
        return PackedBlocks(
            values.astype(np.int8), scales, self._offsets(stored, rows, groups, scales, half)
        )

    def _offsets(
        self, stored: StoredTensors, rows: slice, groups: slice, scales: np.ndarray, half: int
    ) -> np.ndarray | None:
        if self.zeros is None:
            return None
        zeros = unpack_words(stored.read(self.zeros)[:, groups].T, self.bits)[:, rows].T
        return -(zeros.astype(np.float32) - half) * scales


@dataclass(frozen=True, slots=True)
class ColumnWeight(PackedWeight):
    """GPTQ and AWQ: stored as [in, out]; groups of inputs share a scale and a zero."""

    prefix: str
    bits: int
    shape: tuple[int, int]
    packing: Packing
    awq: bool
    zero_shift: int  # added to the stored zeros

    def read(self, stored: StoredTensors, rows: slice, columns: slice) -> PackedBlocks:
        block = self.packing.block or self.shape[1]
        groups = slice(columns.start // block, columns.stop // block)
        unsigned = (
            self._awq(stored, rows, columns) if self.awq else self._gptq(stored, rows, columns)
        )
        scales = stored.read(f"{self.prefix}.scales", (groups, rows)).astype(np.float32).T
        zeros = self._zeros(stored, groups, rows).T.astype(np.float32) + self.zero_shift
        half = 1 << (self.bits - 1)
        values = (unsigned.astype(np.int16) - half).astype(np.int8)
        return PackedBlocks(values, np.ascontiguousarray(scales), (half - zeros) * scales)

    def _gptq(self, stored: StoredTensors, rows: slice, columns: slice) -> np.ndarray:
        each = 32 // self.bits
        first, last = columns.start // each, -(-columns.stop // each)
        words = stored.read(f"{self.prefix}.qweight", (slice(first, last), rows))
        skip = columns.start - first * each
        return unpack_words(words.T, self.bits)[:, skip : skip + columns.stop - columns.start]

    def _awq(self, stored: StoredTensors, rows: slice, columns: slice) -> np.ndarray:
        return self._by_rows(stored, "qweight", columns, rows).T

    def _zeros(self, stored: StoredTensors, groups: slice, rows: slice) -> np.ndarray:
        """Return u8[groups, out]."""
        return self._by_rows(stored, "qzeros", groups, rows)

    def _by_rows(self, stored: StoredTensors, part: str, lines: slice, rows: slice) -> np.ndarray:
        """Read a tensor whose words pack values along the outputs."""
        each = 32 // self.bits
        first, last = rows.start // each, -(-rows.stop // each)
        words = stored.read(f"{self.prefix}.{part}", (lines, slice(first, last)))
        order = _AWQ_ORDER if self.awq else None
        skip = rows.start - first * each
        return unpack_words(words, self.bits, order)[:, skip : skip + rows.stop - rows.start]


def unpack_words(words: np.ndarray, bits: int, order: Iterable[int] | None = None) -> np.ndarray:
    """Unpack i32[n, w] to u8[n, w * 32 / bits], the lowest bits first or in the given order."""
    shifts = np.asarray(list(order or range(32 // bits)), np.uint32) * bits
    spread = np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts
    return (spread & ((1 << bits) - 1)).astype(np.uint8).reshape(words.shape[0], -1)


def packed_weights(
    config: Mapping[str, Any] | None, dtypes: Mapping[str, str], stored: StoredTensors
) -> tuple[dict[str, PackedWeight], set[str]]:
    """Return quantised weights by Hugging Face name, and the names of their stored tensors.

    config: quantization_config of config.json; dtypes: safetensors dtype of every stored tensor.
    Raises CheckpointError for an unsupported method.
    """
    if not config:
        return {}, set()
    method = config.get("quant_method")
    find = _METHODS.get(str(method))
    if find is None:
        raise CheckpointError(
            f"quantization_config has quant_method {method!r}; supported: {', '.join(_METHODS)}. "
            "Use the unquantised checkpoint and override QUANTIZE instead"
        )
    found = find(config, dtypes, stored)
    used = {part for name in found for part in _parts_of(name, dtypes)}
    used |= {part for weight in found.values() for part in weight.parts}
    return found, used


_SIDE = (
    "weight_scale_inv",
    "weight_scale",
    "weight_packed",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "input_scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
)


def _parts_of(name: str, dtypes: Mapping[str, str]) -> Iterable[str]:
    prefix = name.removesuffix(".weight")
    return (f"{prefix}.{part}" for part in ("weight", *_SIDE) if f"{prefix}.{part}" in dtypes)


def _scaled(
    config: Mapping[str, Any], dtypes: Mapping[str, str], stored: StoredTensors
) -> dict[str, PackedWeight]:
    found: dict[str, PackedWeight] = {}
    for name, dtype in dtypes.items():
        if dtype in ("F8_E4M3", "I8") and name.endswith(".weight"):
            found[name] = _scaled_weight(config, name, dtype, dtypes, stored)
    return found


def _scaled_weight(
    config: Mapping[str, Any],
    name: str,
    dtype: str,
    dtypes: Mapping[str, str],
    stored: StoredTensors,
) -> ScaledWeight:
    scales = next(
        (f"{name}{end}" for end in ("_scale_inv", "_scale") if f"{name}{end}" in dtypes), None
    )
    if scales is None:
        raise CheckpointError(f"tensor {name} is {dtype} but {name}_scale is missing")
    shape = _matrix(stored, name)
    down, across = tile = _tile(config, name, shape, stored.shape(scales))
    kind = "int8" if dtype == "I8" else FLOAT8.name
    block = None if across >= shape[1] else across
    if block and shape[1] % block or down < 1:
        raise CheckpointError(
            f"tensor {name} is {list(shape)}, not a whole number of blocks of {list(tile)}"
        )
    return ScaledWeight(name, scales, shape, Packing(kind, block, False), tile)


def _tile(
    config: Mapping[str, Any], name: str, shape: tuple[int, int], scales: tuple[int, ...]
) -> tuple[int, int]:
    rows, columns = (1, 1) if len(scales) == 0 else (scales[0], scales[1] if len(scales) > 1 else 1)
    if rows * columns == 1:
        return shape
    given = config.get("weight_block_size")
    tile = (
        tuple(given) if given and columns > 1 else (-(-shape[0] // rows), -(-shape[1] // columns))
    )
    if (-(-shape[0] // tile[0]), -(-shape[1] // tile[1])) != (rows, columns):
        raise CheckpointError(
            f"tensor {name} is {list(shape)} and its scales are {list(scales)}; they do not match"
        )
    return tile[0], tile[1]


def _compressed(
    config: Mapping[str, Any], dtypes: Mapping[str, str], stored: StoredTensors
) -> dict[str, PackedWeight]:
    found = _scaled(config, dtypes, stored)
    for packed in dtypes:
        if packed.endswith(".weight_packed"):
            found[packed.removesuffix("_packed")] = _word_weight(config, packed, dtypes, stored)
    return found


def _word_weight(
    config: Mapping[str, Any], packed: str, dtypes: Mapping[str, str], stored: StoredTensors
) -> WordWeight:
    name = packed.removesuffix("_packed")
    if dtypes[packed] != "I32":
        raise CheckpointError(f"tensor {packed} is {dtypes[packed]}; packed integers are I32")
    if f"{name}_g_idx" in dtypes:
        raise CheckpointError(f"tensor {name}_g_idx: reordered groups are not supported")
    out, words = _matrix(stored, packed)
    inputs = int(stored.read(f"{name}_shape")[1])
    bits = _bits(32 * words, inputs, packed)
    groups = stored.shape(f"{name}_scale")[1:] or (1,)
    block = None if groups[0] == 1 else inputs // groups[0]
    zeros = f"{name}_zero_point" if f"{name}_zero_point" in dtypes else None
    kind = "int4" if bits == 4 else "int8"
    packing = Packing(kind, block, zeros is not None)
    return WordWeight(packed, f"{name}_scale", zeros, bits, (out, inputs), packing)


def _column_weights(awq: bool):
    def find(
        config: Mapping[str, Any], dtypes: Mapping[str, str], stored: StoredTensors
    ) -> dict[str, PackedWeight]:
        prefixes = [name.removesuffix(".qweight") for name in dtypes if name.endswith(".qweight")]
        return {f"{p}.weight": _column_weight(config, p, dtypes, stored, awq) for p in prefixes}

    return find


def _column_weight(
    config: Mapping[str, Any],
    prefix: str,
    dtypes: Mapping[str, str],
    stored: StoredTensors,
    awq: bool,
) -> ColumnWeight:
    if missing := [p for p in ("qzeros", "scales") if f"{prefix}.{p}" not in dtypes]:
        raise CheckpointError(f"tensor {prefix}.qweight has no {prefix}.{missing[0]} beside it")
    bits = int(config.get("bits", config.get("w_bit", 4)))
    if bits not in (4, 8) or (awq and bits != 4):
        raise CheckpointError(f"tensor {prefix}.qweight has {bits} bits; supported: 4, 8 (AWQ: 4)")
    lines, outputs = _matrix(stored, f"{prefix}.qweight")
    each = 32 // bits
    out, inputs = (outputs * each, lines) if awq else (outputs, lines * each)
    groups = stored.shape(f"{prefix}.scales")[0]
    block = None if groups == 1 else inputs // groups
    if f"{prefix}.g_idx" in dtypes:
        _check_order(stored.read(f"{prefix}.g_idx"), block or inputs, prefix)
    shift = 1 if not awq and config.get("checkpoint_format", "gptq") == "gptq" else 0
    packing = Packing("int4" if bits == 4 else "int8", block, True)
    return ColumnWeight(prefix, bits, (out, inputs), packing, awq, shift)


def _check_order(groups: np.ndarray, block: int, prefix: str) -> None:
    if not np.array_equal(groups, np.arange(len(groups)) // block):
        raise CheckpointError(
            f"tensor {prefix}.g_idx: the columns were reordered (desc_act with act-order groups), "
            "which is not supported: use a checkpoint made with desc_act false"
        )


def _bits(stored_bits: int, inputs: int, name: str) -> int:
    bits = stored_bits // max(inputs, 1)
    if bits not in (4, 8):
        raise CheckpointError(f"tensor {name} has {bits} bits per number; supported: 4, 8")
    return bits


def _matrix(stored: StoredTensors, name: str) -> tuple[int, int]:
    shape = stored.shape(name)
    if len(shape) != 2:
        raise CheckpointError(f"tensor {name} is {list(shape)}; quantised weights must be matrices")
    return shape[0], shape[1]


_METHODS = {
    "fp8": _scaled,
    "fbgemm_fp8": _scaled,
    "compressed-tensors": _compressed,
    "gptq": _column_weights(awq=False),
    "awq": _column_weights(awq=True),
    "mxfp4": mxfp4_weights,
}
