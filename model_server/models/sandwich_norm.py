"""Layer of Gemma 2 and 3: a norm before and after each half."""

from __future__ import annotations

import jax
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.rope import Rotary


class SandwichNormLayer(nnx.Module):
    """x + norm(attention(norm(x))), then x + norm(ffw(norm(x))) (Ding et al. 2021, 2105.13290)."""

    def __init__(
        self,
        before_attention: nnx.Module,
        attention: nnx.Module,
        after_attention: nnx.Module,
        before_ffw: nnx.Module,
        ffw: nnx.Module,
        after_ffw: nnx.Module,
    ) -> None:
        self.before_attention = before_attention
        self.attention = attention
        self.after_attention = after_attention
        self.before_ffw = before_ffw
        self.ffw = ffw
        self.after_ffw = after_ffw

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        """Returns f32[T, D] and the pages with the new tokens written."""
        mixed, pages = self.attention(self.before_attention(x), rotation, pages, batch)
        x = x + self.after_attention(mixed)
        return x + self.after_ffw(self.ffw(self.before_ffw(x))), pages
