"""Layer of OLMo 2: a norm after each half, before it joins the residual stream."""

from __future__ import annotations

import jax
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.rope import Rotary


class PostNormLayer(nnx.Module):
    """x + norm(attention(x)), then x + norm(ffw(x)) (Liu et al. 2022, arXiv:2111.09883)."""

    def __init__(
        self,
        attention: nnx.Module,
        after_attention: nnx.Module,
        ffw: nnx.Module,
        after_ffw: nnx.Module,
    ) -> None:
        self.attention = attention
        self.after_attention = after_attention
        self.ffw = ffw
        self.after_ffw = after_ffw

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        """Returns f32[T, D] and the pages with the new tokens written."""
        mixed, pages = self.attention(x, rotation, pages, batch)
        x = x + self.after_attention(mixed)
        return x + self.after_ffw(self.ffw(x)), pages
