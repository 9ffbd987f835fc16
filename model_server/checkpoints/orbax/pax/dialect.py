"""The names and layouts of Praxis models, as Pax trains them and Saxml serves them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.orbax.dialect import Config, Dialect, Rule, Shape
from model_server.checkpoints.orbax.pax.architectures import C4, LM_CLOUD
from model_server.checkpoints.orbax.pax.model import LAYER_MARK, praxis_model
from model_server.checkpoints.region import Region
from sax.errors import CheckpointError

# The projections of one layer: rows of queries, then of keys and values.
_PROJECTIONS = re.compile(r"layers\.(\d+)\.qkv\.kernel")
# A config.json that says nothing but sizes has them here, under Saxml's names for them.
SAXML_SIZES = "saxml_sizes"
# Models that no library but Praxis has: their sizes are their whole config.json.
PRAXIS_ONLY = (LM_CLOUD.model_type, C4.model_type)


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


def sizes_only(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Return the config.json of a checkpoint without one; Saxml's class says the rest."""
    model = praxis_model(shapes)
    return {"model_type": model.architecture.model_type, SAXML_SIZES: model.saxml_sizes}


def query_scales(shapes: Mapping[str, Shape], arrays: Mapping[str, Any]) -> QueryScales | None:
    """Return the learned scales of queries; None if the model has none."""
    model = praxis_model(shapes)
    found = {layer: arrays[path] for layer, path in model.query_scales().items()}
    return QueryScales(found, model.sizes["H"] * model.sizes["Q"]) if found else None


def _rules(config: Config, shapes: Mapping[str, Shape]) -> tuple[Rule, ...]:
    model = praxis_model(shapes)
    kind = model.architecture.model_type
    if config.get("model_type") != kind:
        raise CheckpointError(
            f"its variables are those of {model.architecture.title} (model_type {kind!r}), but the "
            f"config.json beside it says {config.get('model_type')!r}"
        )
    return model.rules()


PRAXIS = Dialect("Praxis (Pax)", LAYER_MARK, _rules)
