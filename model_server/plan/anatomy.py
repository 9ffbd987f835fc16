"""Read heads, windows and experts off the modules of a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import Any

import jax.numpy as jnp
from flax import nnx

from model_server.models.layers.attention import Attention
from model_server.models.layers.latent_attention import LatentAttention
from model_server.models.layers.routing import Router
from model_server.models.recipe import Recipe
from model_server.models.weights.weight import WeightForm

_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class LayerType:
    """The properties in which layers of one model differ."""

    window: int | None = None  # tokens that a query attends to; None: all
    is_routed: bool = False  # its feed-forward block is a mixture of experts


@dataclass(frozen=True, slots=True)
class Anatomy:
    """One model's structure, independent of its sharding."""

    heads: int  # query heads, of the layer that has most
    kv_heads: int
    layers: tuple[LayerType, ...]
    experts_per_token: int | None  # None: no experts

    def seen(self, context: int) -> int:
        """Cached tokens that one query attends to, summed over the layers."""
        windows = (layer.window for layer in self.layers)
        return sum(context if window is None else min(context, window) for window in windows)


def anatomy_of(recipe: Recipe) -> Anatomy:
    """Read the structure off the recipe's modules, built abstractly (no memory)."""
    form = WeightForm(dtype=jnp.dtype(recipe.dtype))
    module: Any = nnx.eval_shape(lambda: recipe.build(form))
    parts = [_parts(layer) for layer in module.layers]
    shapes = [part.shape for part in chain(*parts) if not isinstance(part, Router)]
    routers = [part for part in chain(*parts) if isinstance(part, Router)]
    return Anatomy(
        heads=max(shape.heads for shape in shapes),
        kv_heads=max(getattr(shape, "kv_heads", 1) for shape in shapes),
        layers=tuple(map(_layer, parts)),
        experts_per_token=_chosen(routers[0].choice) if routers else None,
    )


def layer_at(path: str) -> int | None:
    """Return the layer of a weight by its path; None if it belongs to none."""
    found = _LAYER.match(path)
    return int(found[1]) if found else None


def _chosen(choice: Any) -> int:
    """Experts per token; every kind of routing has a count."""
    return choice.count


def _parts(layer: Any) -> list[Any]:
    """Find the attention and router modules anywhere in a layer."""
    wanted = (Attention, LatentAttention, Router)
    return [node for _, node in nnx.iter_graph(layer) if isinstance(node, wanted)]


def _layer(parts: list[Any]) -> LayerType:
    windows = [part.shape.window for part in parts if isinstance(part, Attention)]
    routed = any(isinstance(part, Router) for part in parts)
    return LayerType(windows[0] if windows else None, routed)
