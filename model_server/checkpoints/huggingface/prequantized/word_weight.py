"""Weights of compressed-tensors whose integers are packed into words: `pack-quantized`.

weight_packed i32[out, in * bits / 32] along each row, plus half the range; weight_scale
[out, groups]; weight_zero_point i32[out * bits / 32, groups] along each column if zeros differ;
weight_shape, [out, in]; weight_g_idx if the columns were sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model_server.checkpoints.huggingface.prequantized.column_groups import (
    ColumnGroups,
    column_groups,
    scattered,
)
from model_server.checkpoints.huggingface.prequantized.packed_weight import (
    PackedWeight,
    check_shape,
    matrix_shape,
)
from model_server.checkpoints.huggingface.prequantized.scheme import WeightScheme
from model_server.checkpoints.huggingface.prequantized.words import (
    unpack_span,
    unpack_span_down,
    words_of,
)
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import PackedBlocks, Packing
from sax.errors import CheckpointError


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
