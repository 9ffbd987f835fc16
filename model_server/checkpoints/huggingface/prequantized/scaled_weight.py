"""Int8 or float8 values in one tensor, with scales per row, per block or for all of it.

NAME I8 or F8_E4M3 [out, in] with NAME_scale, or NAME_scale_inv as DeepSeek-V3 calls it, of [],
[1], [out], [out, groups] or [out / a, in / b]; bytes as scales are exponents (MXFP8).
NAME_zero_point, if the scheme is not symmetric, has the shape of the scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model_server.checkpoints.huggingface.prequantized.column_groups import ColumnGroups
from model_server.checkpoints.huggingface.prequantized.packed_weight import (
    PackedWeight,
    check_shape,
    matrix_shape,
)
from model_server.checkpoints.huggingface.prequantized.scheme import WeightScheme
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import FLOAT8, PackedBlocks, Packing, e8m0_numbers
from sax.errors import CheckpointError

_VALUES = {"F8_E4M3": FLOAT8.name, "I8": "int8"}


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
    ends = (f"{name}_scale_inv", f"{name}_scale")
    scales = next((end for end in ends if end in dtypes), None)
    if scales is None:
        raise CheckpointError(
            f"tensor {name} is {dtypes[name]} and {ends[1]} is missing: fetch the checkpoint again"
        )
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
