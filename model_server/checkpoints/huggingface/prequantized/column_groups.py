"""Columns of a row that share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.packed import Packing
from sax.errors import CheckpointError


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
