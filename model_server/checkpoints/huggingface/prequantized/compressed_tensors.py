"""Finds the weights of a checkpoint that was written by compressed-tensors.

Stored tensors tell the format of each weight, so one checkpoint may mix formats: NAME_packed in
words of I32 is pack-quantized, in bytes nvfp4- or mxfp4-pack-quantized; I8 is int-quantized, and
F8_E4M3 float-quantized or mxfp8-quantized. Weights that the configuration ignores are plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.huggingface.prequantized.column_groups import (
    ColumnGroups,
    column_groups,
    scattered,
)
from model_server.checkpoints.huggingface.prequantized.float4_weight import float4_weight
from model_server.checkpoints.huggingface.prequantized.packed_weight import (
    PackedWeight,
    check_shape,
    matrix_shape,
)
from model_server.checkpoints.huggingface.prequantized.scaled_weight import scaled_weight
from model_server.checkpoints.huggingface.prequantized.scheme import WeightScheme, scheme_groups
from model_server.checkpoints.huggingface.prequantized.words import (
    unpack_span,
    unpack_span_down,
    words_of,
)
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import PackedBlocks, Packing
from sax.errors import CheckpointError

# Weights of compressed-tensors whose integers are packed into words: `pack-quantized`.
#
# weight_packed i32[out, in * bits / 32] along each row, plus half the range; weight_scale [out,
# groups]; weight_zero_point i32[out * bits / 32, groups] along each column if zeros differ;
# weight_shape, [out, in]; weight_g_idx if the columns were sorted.


@dataclass(frozen=True, slots=True)
class WordWeight(PackedWeight):
    words: str
    scales: str
    zeros: str | None
    bits: int
    shape: tuple[int, int]
    groups: ColumnGroups

    @property
    def packing(self) -> Packing | None:
        kind = "int4" if self.bits <= 4 else "int8"
        return self.groups.packing(kind, self.zeros is not None)

    def read(self, stored: StoredTensors, *region: slice) -> PackedBlocks:
        rows, columns = region
        unsigned = unpack_span(stored, self.words, self.bits, rows, columns)
        values = (unsigned - np.uint8(self._half)).view(np.int8)
        wanted = self.groups.of(columns)
        scales = stored.read(self.scales, (rows,)).astype(np.float32)
        scales = scales.reshape(len(values), -1)[:, wanted]
        if self.zeros is None:
            return PackedBlocks(values, scales, None)
        # By column: u8[groups, rows].
        zeros = unpack_span_down(
            stored, self.zeros, self.bits, rows, slice(0, self.groups.count)
        ).T[:, wanted]
        return PackedBlocks(values, scales, (self._half - zeros.astype(np.float32)) * scales)

    @property
    def _half(self) -> int:
        return 1 << (self.bits - 1)


def word_weight(
    name: str, scheme: WeightScheme | None, dtypes: Mapping[str, str], stored: StoredTensors
) -> WordWeight:
    """Return the weight of NAME_packed. Raises CheckpointError if its parts do not fit."""
    packed, scales = f"{name}_packed", f"{name}_scale"
    out, words = matrix_shape(stored, packed)
    inputs = _inputs(name, out, stored)
    bits = scheme.bits if scheme and scheme.bits else 32 * words // inputs
    if not 2 <= bits <= 8 or words_of(inputs, bits) != words:
        raise CheckpointError(
            f"tensor {packed} is {[out, words]} for {inputs} columns of {bits} bits; numbers of 2 "
            "to 8 bits are packed without gaps: save it with a later compressed-tensors, or use "
            "another quantisation of the model"
        )
    count = (stored.shape(scales)[1:] or (1,))[0]
    check_shape(stored, scales, (out, *stored.shape(scales)[1:]), "with a row for each output")
    groups = column_groups(inputs, count, scheme.group_size if scheme else None, scales)
    if f"{name}_g_idx" in dtypes:
        groups = scattered(groups, stored.read(f"{name}_g_idx"), f"{name}_g_idx")
    zeros = f"{name}_zero_point"
    if zeros not in dtypes:
        if scheme and not scheme.symmetric:
            raise CheckpointError(
                f"tensor {packed} has zero points by config.json, and {zeros} is missing: fetch "
                "the checkpoint again"
            )
        return WordWeight(packed, scales, None, bits, (out, inputs), groups)
    check_shape(stored, zeros, (words_of(out, bits), groups.count), f"for {bits} bits of {packed}")
    return WordWeight(packed, scales, zeros, bits, (out, inputs), groups)


def _inputs(name: str, out: int, stored: StoredTensors) -> int:
    shape = stored.read(f"{name}_shape").astype(np.int64).tolist()
    if len(shape) != 2 or shape[0] != out or shape[1] < 1:
        raise CheckpointError(
            f"tensor {name}_shape says {shape}, and {name}_packed has {out} rows: fetch the "
            "checkpoint again"
        )
    return shape[1]


FORMATS = (
    "dense",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
)
_PACKED = ".weight_packed"


def compressed_weights(
    config: Mapping[str, Any], dtypes: Mapping[str, str], stored: StoredTensors
) -> dict[str, PackedWeight]:
    """Return all quantised weights. Raises CheckpointError."""
    _check_format(config)
    schemes = scheme_groups(config)
    found: dict[str, PackedWeight] = {}
    for tensor, dtype in dtypes.items():
        module = tensor.removesuffix(".weight").removesuffix(_PACKED)
        name = f"{module}.weight"
        if tensor == name and dtype in ("I8", "F8_E4M3"):
            scheme = schemes.of(module)
            tile = scheme.tile if scheme else None
            if scheme and tile is None and scheme.group_size and scheme.group_size > 0:
                tile = (1, scheme.group_size)
            found[name] = scaled_weight(name, tile, scheme, dtypes, stored)
        elif tensor == module + _PACKED:
            found[name] = _packed_weight(module, schemes.of(module), dtypes, stored)
    return found


def _packed_weight(
    module: str, scheme: WeightScheme | None, dtypes: Mapping[str, str], stored: StoredTensors
) -> PackedWeight:
    name, packed = f"{module}.weight", module + _PACKED
    if dtypes[packed] == "I32":
        for part in (f"{name}_scale", f"{name}_shape"):
            if part not in dtypes:
                raise CheckpointError(
                    f"tensor {packed} has no {part} beside it: fetch the checkpoint again"
                )
        return word_weight(name, scheme, dtypes, stored)
    if dtypes[packed] != "U8":
        raise CheckpointError(
            f"tensor {packed} is {dtypes[packed]}; integers are packed into I32, float4 into U8"
        )
    whole = f"{name}_global_scale"
    nvfp4 = whole in dtypes or dtypes.get(f"{name}_scale") == "F8_E4M3"
    return float4_weight(
        packed, f"{name}_scale", whole if nvfp4 else None, dtypes, stored, divides=True
    )


def _check_format(config: Mapping[str, Any]) -> None:
    """Raise CheckpointError for formats whose numbers would be read wrongly."""
    groups = config.get("config_groups") or {}
    formats = {config.get("format")}
    if isinstance(groups, Mapping):
        formats |= {each.get("format") for each in groups.values() if isinstance(each, Mapping)}
    for given in sorted(str(each) for each in formats - {None}):
        if given not in FORMATS:
            raise CheckpointError(
                f"quantization_config has format {given!r}; supported: {', '.join(FORMATS)}"
            )
    sparsity = config.get("sparsity_config") or {}
    if sparsity.get("format", "dense") not in ("dense", None):
        raise CheckpointError(
            f"quantization_config has a sparsity_config of format {sparsity['format']!r}: sparse "
            "weights are not read; use a checkpoint that is quantised only"
        )
    transforms = config.get("transform_config") or {}
    if transforms.get("config_groups"):
        raise CheckpointError(
            "quantization_config has a transform_config: inputs would have to be rotated before "
            "products, which is not built; use a checkpoint without transforms"
        )
