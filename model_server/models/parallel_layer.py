"""Layer of GPT-J and GPT-NeoX: both halves read the same residual stream."""

from __future__ import annotations

import jax
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.rope import Rotary


class ParallelLayer(nnx.Module):
    """x + attention(norm(x)) + ffw(norm(x)) (Black et al. 2022, arXiv:2204.06745, section 2.1)."""

    def __init__(
        self,
        before_attention: nnx.Module,
        attention: nnx.Module,
        before_ffw: nnx.Module | None,  # None: both halves share one norm, as in GPT-J
        ffw: nnx.Module,
    ) -> None:
        self.before_attention = before_attention
        self.attention = attention
        self.before_ffw = before_ffw
        self.ffw = ffw

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        normed = self.before_attention(x)
        mixed, pages = self.attention(normed, rotation, pages, batch)
        seen = normed if self.before_ffw is None else self.before_ffw(x)
        return x + mixed + self.ffw(seen), pages
