"""Layer of most decoders: each half behind its own norm, added to the residual stream."""

from __future__ import annotations

import jax
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.rope import Rotary


class PreNormLayer(nnx.Module):
    """x + attention(norm(x)), then x + ffw(norm(x)) (Xiong et al. 2020, arXiv:2002.04745)."""

    def __init__(
        self,
        before_attention: nnx.Module,
        attention: nnx.Module,
        before_ffw: nnx.Module,
        ffw: nnx.Module,
    ) -> None:
        self.before_attention = before_attention
        self.attention = attention
        self.before_ffw = before_ffw
        self.ffw = ffw

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        mixed, pages = self.attention(self.before_attention(x), rotation, pages, batch)
        x = x + mixed
        return x + self.ffw(self.before_ffw(x)), pages
