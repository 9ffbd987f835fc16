"""What a step of a model works on, read off its modules: heads, windows, experts. Takes no memory."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from flax import nnx

from model_server.models.attention import Attention
from model_server.models.latent_attention import LatentAttention
from model_server.models.recipe import Recipe
from model_server.models.routing import Router
from model_server.models.weight import WeightForm


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Of one model, whatever it is divided over."""

    heads: int  # that ask; of the layer that has most
    kv_heads: int
    windows: tuple[int | None, ...]  # one per layer: tokens that a query sees; None: all
    experts_per_token: int | None  # None: there are none

    def seen(self, context: int) -> int:
        """Cached tokens that one query sees, added up over the layers."""
        return sum(context if window is None else min(context, window) for window in self.windows)


def anatomy_of(recipe: Recipe) -> Anatomy:
    """Read it off the modules of the recipe."""
    form = WeightForm(dtype=jnp.dtype(recipe.dtype))
    module = nnx.eval_shape(lambda: recipe.build(form))
    heads, kv_heads, windows, chosen = [1], [1], list[int | None](), None
    for _, node in nnx.iter_graph(module):
        if isinstance(node, Attention):
            heads.append(node.shape.heads)
            kv_heads.append(node.shape.kv_heads)
            windows.append(node.shape.window)
        elif isinstance(node, LatentAttention):
            heads.append(node.shape.heads)
            windows.append(None)
        elif isinstance(node, Router):
            chosen = node.choice.count
    return Anatomy(max(heads), max(kv_heads), tuple(windows), chosen)
