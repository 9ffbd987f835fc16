"""GPTQ and AWQ: weights stored as [in, out], whose groups of inputs share a scale and a zero.

GPTQ: qweight i32[in * bits / 32, out] along its columns, qzeros i32[groups, out * bits / 32],
scales [groups, out] and g_idx i32[in], the group of each input. Version 1 stores zeros less one.
AWQ ("gemm"): qweight i32[in, out / 8] and qzeros along their rows, in an order of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.huggingface.prequantized.packed_weight import (
    PackedWeight,
    check_shape,
    matrix_shape,
)
from model_server.checkpoints.huggingface.prequantized.words import (
    AWQ_ORDER,
    unpack_span,
    unpack_span_down,
    words_of,
)
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import PackedBlocks, Packing
from sax.errors import CheckpointError

_FORMATS = ("gptq", "gptq_v2")
_GPTQ_BITS = (2, 3, 4, 8)


@dataclass(frozen=True, slots=True, eq=False)
class ColumnGroups:
    """Groups of `size` columns, one after the other or scattered."""

    inputs: int
    size: int
    order: np.ndarray | None = None  # i64[in]: the group of each column; None: in turn

    @property
    def count(self) -> int:
        return -(-self.inputs // self.size)

    @property
    def are_blocks(self) -> bool:
        """True if every group is a block of neighbours of the same size."""
        return self.order is None and self.inputs % self.size == 0

    def packing(self, kind: str, offset: bool) -> Packing | None:
        if not self.are_blocks:
            return None
        return Packing(kind, None if self.size == self.inputs else self.size, offset)

    def of(self, columns: slice) -> Any:
        """Return the groups of these columns: a slice of whole blocks, or i64, one of each."""
        if self.are_blocks:
            return slice(columns.start // self.size, -(-columns.stop // self.size))
        if self.order is None:
            return np.arange(columns.start, columns.stop) // self.size
        return self.order[columns]


def column_groups(inputs: int, count: int, given: Any, name: str) -> ColumnGroups:
    """Return `count` groups, of the `given` size if the configuration has one.

    given: columns of a group; None or -1: the whole row, or equal groups. Raises CheckpointError.
    """
    size = given if isinstance(given, int) and given > 0 else -(-inputs // max(count, 1))
    groups = ColumnGroups(inputs, min(size, inputs))
    if groups.count != count:
        raise CheckpointError(
            f"tensor {name} has {count} scales a row; {inputs} columns in groups of {size} need "
            f"{groups.count}: config.json and the weights belong to different checkpoints"
        )
    return groups


def scattered(groups: ColumnGroups, order: np.ndarray, name: str) -> ColumnGroups:
    """Return the groups in the order that `g_idx` says. Raises CheckpointError."""
    if order.shape != (groups.inputs,):
        raise CheckpointError(
            f"tensor {name} is {list(order.shape)}; it must name the group of each of the "
            f"{groups.inputs} columns: fetch the checkpoint again"
        )
    if (order == -1).all() or np.array_equal(order, np.arange(groups.inputs) // groups.size):
        return groups  # -1: never set, as the columns were not sorted
    if order.min() < 0 or order.max() >= groups.count:
        raise CheckpointError(
            f"tensor {name} names the groups {order.min()} to {order.max()}; there are "
            f"{groups.count}: fetch the checkpoint again"
        )
    return ColumnGroups(groups.inputs, groups.size, order.astype(np.int64))


@dataclass(frozen=True, slots=True)
class ColumnWeight(PackedWeight):
    prefix: str
    bits: int
    shape: tuple[int, int]
    groups: ColumnGroups
    awq: bool
    zero_shift: int  # added to the stored zeros
    zeros: bool = True  # False: half the range

    @property
    def packing(self) -> Packing | None:
        return self.groups.packing("int4" if self.bits <= 4 else "int8", self.zeros)

    def read(self, stored: StoredTensors, *region: slice) -> PackedBlocks:
        rows, columns = region
        every, wanted = slice(0, self.groups.count), self.groups.of(columns)
        scales = stored.read(f"{self.prefix}.scales", (every, rows))[wanted].astype(np.float32).T
        half = 1 << (self.bits - 1)
        values = (self._unsigned(stored, rows, columns) - np.uint8(half)).view(np.int8)
        if not self.zeros:
            return PackedBlocks(values, np.ascontiguousarray(scales), None)
        zeros = self._along_rows(stored, "qzeros", every, rows)[wanted].T.astype(np.float32)
        offsets = (half - (zeros + self.zero_shift)) * scales
        return PackedBlocks(values, np.ascontiguousarray(scales), offsets)

    def _unsigned(self, stored: StoredTensors, rows: slice, columns: slice) -> np.ndarray:
        if self.awq:
            return np.ascontiguousarray(self._along_rows(stored, "qweight", columns, rows).T)
        return unpack_span_down(stored, f"{self.prefix}.qweight", self.bits, columns, rows)

    def _along_rows(
        self, stored: StoredTensors, part: str, lines: slice, rows: slice
    ) -> np.ndarray:
        order = AWQ_ORDER if self.awq else None
        return unpack_span(stored, f"{self.prefix}.{part}", self.bits, lines, rows, order)


def gptq_weights(
    config: Mapping[str, Any], dtypes: Mapping[str, str], stored: StoredTensors
) -> dict[str, PackedWeight]:
    """Return all weights of a GPTQ checkpoint. Raises CheckpointError."""
    form = str(config.get("checkpoint_format", "gptq"))
    if form not in _FORMATS or config.get("is_marlin_format"):
        raise CheckpointError(
            f"quantization_config has checkpoint_format {form!r}, or weights laid out for Marlin; "
            f"supported: {', '.join(_FORMATS)}"
        )
    shift = 1 if form == "gptq" else 0
    return {
        f"{prefix}.weight": _gptq_weight(config, prefix, dtypes, stored, shift)
        for prefix in _prefixes(dtypes, stored, zeros=True)
    }


def awq_weights(
    config: Mapping[str, Any], dtypes: Mapping[str, str], stored: StoredTensors
) -> dict[str, PackedWeight]:
    """Return all weights of an AWQ checkpoint. Raises CheckpointError."""
    version, bits = str(config.get("version", "gemm")).lower(), _given(config, "bits", "w_bit") or 4
    if version != "gemm" or bits != 4:
        raise CheckpointError(
            f"quantization_config has version {version!r} and {bits} bits of AWQ; supported: "
            '"gemm" with 4 bits'
        )
    zeros = config.get("zero_point", True) is not False
    return {
        f"{prefix}.weight": _awq_weight(config, prefix, stored, zeros)
        for prefix in _prefixes(dtypes, stored, zeros)
    }


def _prefixes(dtypes: Mapping[str, str], stored: StoredTensors, zeros: bool) -> list[str]:
    """Return the modules that have packed weights. Raises CheckpointError if a part is missing."""
    prefixes = [name.removesuffix(".qweight") for name in dtypes if name.endswith(".qweight")]
    for prefix in prefixes:
        _check_part(f"{prefix}.qweight", prefix, dtypes, stored)
        if zeros:
            _check_part(f"{prefix}.qzeros", prefix, dtypes, stored)
        if f"{prefix}.scales" not in dtypes:
            raise _without(prefix, "scales")
        matrix_shape(stored, f"{prefix}.scales")
    return prefixes


def _check_part(name: str, prefix: str, dtypes: Mapping[str, str], stored: StoredTensors) -> None:
    if name not in dtypes:
        raise _without(prefix, name.removeprefix(f"{prefix}."))
    if dtypes[name] != "I32":
        raise CheckpointError(
            f"tensor {name} is {dtypes[name]}; supported are numbers packed into I32"
        )
    matrix_shape(stored, name)


def _without(prefix: str, part: str) -> CheckpointError:
    return CheckpointError(
        f"tensor {prefix}.qweight has no {prefix}.{part} beside it: fetch the checkpoint again"
    )


def _gptq_weight(
    config: Mapping[str, Any],
    prefix: str,
    dtypes: Mapping[str, str],
    stored: StoredTensors,
    shift: int,
) -> ColumnWeight:
    qweight, qzeros, scales = (f"{prefix}.{part}" for part in ("qweight", "qzeros", "scales"))
    words, out = matrix_shape(stored, qweight)
    # Of each module: GPTQModel may give some of them other bits than config.json says.
    bits = 32 * stored.shape(qzeros)[1] // out
    if bits not in _GPTQ_BITS:
        raise CheckpointError(
            f"tensor {qzeros} is {list(stored.shape(qzeros))} for {out} outputs, {bits} bits each; "
            f"GPTQ has {', '.join(map(str, _GPTQ_BITS))}"
        )
    _check_bits(config, bits, qweight)
    inputs = 32 * words // bits
    check_shape(stored, qweight, (words_of(inputs, bits), out), f"for {inputs} inputs")
    groups = _groups(config, inputs, scales, stored)
    check_shape(stored, scales, (groups.count, out), "with a scale for each group and output")
    check_shape(stored, qzeros, (groups.count, words_of(out, bits)), f"as {scales} says")
    if f"{prefix}.g_idx" in dtypes:
        groups = scattered(groups, stored.read(f"{prefix}.g_idx"), f"{prefix}.g_idx")
    return ColumnWeight(prefix, bits, (out, inputs), groups, awq=False, zero_shift=shift)


def _check_bits(config: Mapping[str, Any], bits: int, name: str) -> None:
    given = config.get("bits")
    if given is not None and given != bits and not config.get("dynamic"):
        raise CheckpointError(
            f"tensor {name} has {bits} bits per number and quantization_config says {given!r}: "
            "they belong to different checkpoints"
        )


def _awq_weight(
    config: Mapping[str, Any], prefix: str, stored: StoredTensors, zeros: bool
) -> ColumnWeight:
    qweight, qzeros, scales = (f"{prefix}.{part}" for part in ("qweight", "qzeros", "scales"))
    inputs, words = matrix_shape(stored, qweight)
    groups = _groups(config, inputs, scales, stored)
    if not groups.are_blocks:
        raise CheckpointError(
            f"tensor {qweight} has {inputs} inputs, no whole groups of {groups.size}: fetch the "
            "checkpoint again"
        )
    check_shape(stored, scales, (groups.count, 8 * words), f"as {qweight} says")
    if zeros:
        check_shape(stored, qzeros, (groups.count, words), f"as {qweight} says")
    return ColumnWeight(prefix, 4, (8 * words, inputs), groups, True, 0, zeros)


def _groups(
    config: Mapping[str, Any], inputs: int, scales: str, stored: StoredTensors
) -> ColumnGroups:
    given = None if config.get("dynamic") else _given(config, "group_size", "q_group_size")
    return column_groups(inputs, stored.shape(scales)[0], given, scales)


def _given(config: Mapping[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)
