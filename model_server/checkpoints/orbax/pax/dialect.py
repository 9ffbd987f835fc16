"""The names and layouts of Praxis models, as Pax trains them and Saxml serves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.checkpoints.orbax.dialect import Config, Dialect, Rule, Shape
from model_server.checkpoints.orbax.pax.architectures import C4, LM_CLOUD
from model_server.checkpoints.orbax.pax.model import LAYER_MARK, praxis_model
from model_server.checkpoints.orbax.pax.query_scale import QueryScales
from sax.errors import CheckpointError

# A config.json that says nothing but sizes has them here, under Saxml's names for them.
SAXML_SIZES = "saxml_sizes"
# Models that no library but Praxis has: their sizes are their whole config.json.
PRAXIS_ONLY = (LM_CLOUD.model_type, C4.model_type)


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
