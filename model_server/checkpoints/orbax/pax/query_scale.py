"""Multiplies queries by Praxis' learned scale, one per dimension of a head.

Praxis divides queries by sqrt(Q) and multiplies each dimension by softplus(s) / log 2, which is 1
for s = 0. The factor goes into the rows of the query projection as they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.region import Region

# The projections of one layer: rows of queries, then of keys and values.
_PROJECTIONS = re.compile(r"layers\.(\d+)\.qkv\.kernel")


@dataclass(frozen=True, slots=True)
class QueryScales:
    """The learned scales of a model's layers. `arrays` are tensorstores."""

    arrays: Mapping[int | None, Any]  # f32[Q] by layer; None: f32[L, Q] of all
    rows: int  # of queries

    def concerns(self, name: str) -> bool:
        """Tell whether the tensor holds queries."""
        return _PROJECTIONS.fullmatch(name) is not None

    def apply(self, name: str, numbers: np.ndarray, region: Region | None) -> np.ndarray:
        """Return a region of a tensor that holds queries, with these scaled: f32."""
        layer = _PROJECTIONS.fullmatch(name)
        assert layer is not None, "it holds no queries"
        start = region[0].start or 0 if region else 0
        rows = np.arange(start, start + len(numbers))
        factor = self._factor(int(layer[1]))
        scale = np.where(rows < self.rows, factor[rows % len(factor)], np.float32(1))
        return numbers.astype(np.float32) * scale[:, None]

    def _factor(self, layer: int) -> np.ndarray:
        """Return f32[Q]."""
        stored = self.arrays[None][layer] if None in self.arrays else self.arrays[layer]
        values = np.asarray(stored.read().result(), np.float32)
        return np.logaddexp(values, 0) / np.float32(np.log(2))
