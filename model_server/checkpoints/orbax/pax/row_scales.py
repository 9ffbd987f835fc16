"""Dequantises what Saxml's tools quantised offline: int8 with a float scale per output channel.

The scale of a variable has its axes but those that are summed over. Its numbers, laid out as the
tensor's rows, multiply them as they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.orbax.pax.model import PraxisModel
from model_server.checkpoints.orbax.view import OrbaxView
from model_server.checkpoints.region import Region


@dataclass(frozen=True, slots=True)
class RowScales:
    """The scales of a model's variables. `arrays` are tensorstores, by path."""

    model: PraxisModel
    arrays: Mapping[str, Any]

    def concerns(self, view: OrbaxView) -> bool:
        """Tell whether a view is of a quantised variable."""
        return view.path in self.model.scales

    def apply(self, view: OrbaxView, numbers: np.ndarray, region: Region | None) -> np.ndarray:
        """Return a region of a quantised variable's view, dequantised: f32."""
        rows = self._laid_out(view).read(self._array(view), region[:1] if region else None)
        return numbers.astype(np.float32) * rows.astype(np.float32)[:, None]

    def _array(self, view: OrbaxView) -> Any:
        return self.arrays[self.model.scales[view.path]]

    def _laid_out(self, view: OrbaxView) -> OrbaxView:
        """Return the view of the scale whose numbers are those of the rows of `view`."""
        path = self.model.scales[view.path]
        axes, own = self.model.axes(view.path), self.model.axes(path)
        dims = tuple(own.index(axes[axis]) for axis in view.dims[0])
        taken = tuple((own.index(axes[axis]), index) for axis, index in view.taken)
        return OrbaxView(path, (dims,), taken, view.rows, paired=view.paired)
