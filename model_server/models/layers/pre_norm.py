"""Layer of most decoders: each half behind its own norm, added to the residual stream."""

from __future__ import annotations

import jax
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.row_sums import rounded
from model_server.models.layers.layers import sum_and_norm
from model_server.models.layers.rope import Rotary


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
        *,
        scale: float = 1.0,  # of both halves, as they are added
    ) -> None:
        self.before_attention = before_attention
        self.attention = attention
        self.after_attention = after_attention
        self.before_ffw = before_ffw
        self.ffw = ffw
        self.after_ffw = after_ffw
        self.scale = scale

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        mixed, pages = self.attention(self.before_attention(x), rotation, pages, batch)
        x = x + scaled(self.scale, self.after_attention(mixed))
        return x + scaled(self.scale, self.after_ffw(self.ffw(self.before_ffw(x)))), pages


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
        mixed, pages = self.attention(x, rotation, pages, batch)
        x = x + self.after_attention(mixed)
        return x + self.after_ffw(self.ffw(x)), pages


class PreNormLayer(nnx.Module):
    """x + attention(norm(x)), then x + ffw(norm(x)) (Xiong et al. 2020, arXiv:2002.04745)."""

    def __init__(
        self,
        before_attention: nnx.Module,
        attention: nnx.Module,
        before_ffw: nnx.Module,
        ffw: nnx.Module,
        *,
        scale: float = 1.0,  # of both halves, as they are added
    ) -> None:
        self.before_attention = before_attention
        self.attention = attention
        self.before_ffw = before_ffw
        self.ffw = ffw
        self.scale = scale

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        mixed, pages = self.attention(self.before_attention(x), rotation, pages, batch)
        x, seen = sum_and_norm(self.before_ffw, x, scaled(self.scale, mixed))
        return x + scaled(self.scale, self.ffw(seen)), pages


def scaled(scale: float, added: jax.Array) -> jax.Array:
    return added if scale == 1.0 else rounded(added * scale)


class MixerLayer(nnx.Module):
    """x + mixer(norm(x)): a layer with one half."""

    def __init__(self, before_mixer: nnx.Module, mixer: nnx.Module) -> None:
        self.before_mixer = before_mixer
        self.mixer = mixer

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        mixed, pages = self.mixer(self.before_mixer(x), rotation, pages, batch)
        return x + mixed, pages


class FeedForwardLayer(nnx.Module):
    """x + ffw(norm(x)): a layer that looks at no other token, and keeps nothing."""

    def __init__(self, before_ffw: nnx.Module, ffw: nnx.Module) -> None:
        self.before_ffw = before_ffw
        self.ffw = ffw

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        return x + self.ffw(self.before_ffw(x)), pages
