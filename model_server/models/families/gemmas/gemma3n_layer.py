"""Gemma 3n's layer and its sparse feed-forward."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.families.gemmas.alternating import Alternation
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import Activation
from model_server.models.layers.lending.lent_attention import KeysValues, LentAttention
from model_server.models.layers.lending.per_layer import PerLayerGate
from model_server.models.layers.rope import Rotary
from model_server.models.weights.weight import WeightForm


class SparseFeedForward(GatedFeedForward):
    """A gated feed-forward that closes all gates but the largest.

    They are taken for normally distributed: those within the lowest share `sparsity` are closed.
    """

    def __init__(self, embed: int, ffw: int, *, sparsity: float, **rest: Any) -> None:
        super().__init__(embed, ffw, **rest)
        self.deviations = NormalDist().inv_cdf(sparsity)

    def __call__(self, x: jax.Array) -> jax.Array:
        opening, up = self.gate_up(x)
        mean = jnp.mean(opening, axis=-1, keepdims=True)
        spread = jnp.sqrt(jnp.mean(jnp.square(opening - mean), axis=-1, keepdims=True))
        opening = jax.nn.relu(opening - mean - spread * self.deviations)
        return self.down(self.activation(opening) * up)


def sparse_ffw(
    sizes: tuple[int, int],
    prefix: str,
    form: WeightForm,
    activation: Activation,
    sparsity: float,
) -> GatedFeedForward:
    """Return the feed-forward of these sizes, sparse unless the share is 0."""
    gate, up, down = ((f"{prefix}.{part}_proj.weight",) for part in ("gate", "up", "down"))
    rest: dict[str, Any] = {"activation": activation, "form": form}
    if not sparsity:
        return GatedFeedForward(*sizes, gate=gate, up=up, down=down, **rest)
    return SparseFeedForward(*sizes, gate=gate, up=up, down=down, sparsity=sparsity, **rest)


class AlternatingLayer(nnx.Module):
    """Four norms around two halves, beside a narrow residual, between prediction and correction."""

    def __init__(
        self,
        norms: tuple[nnx.Module, nnx.Module, nnx.Module, nnx.Module],
        attention: LentAttention,
        ffw: nnx.Module,
        *,
        alternation: Alternation,
        residual: nnx.Module,
        gate: PerLayerGate,
    ) -> None:
        self.before_attention, self.after_attention, self.before_ffw, self.after_ffw = norms
        self.attention = attention
        self.ffw = ffw
        self.alternation = alternation
        self.residual = residual
        self.gate = gate

    def __call__(
        self,
        stream: jax.Array,  # f32[T, A * D]
        own: jax.Array,  # f32[T, P]
        rotation: Rotary,
        pages: LayerPages,
        lent: KeysValues | None,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages, KeysValues]:
        versions = self.alternation.prediction[...].shape[1]
        predicted = self.alternation.predict(stream.reshape(stream.shape[0], versions, -1))
        x = predicted[:, self.alternation.active]
        normed = self.before_attention(x)
        mixed, pages, lent = self.attention(normed, rotation, pages, lent, batch)
        x = x + self.after_attention(mixed) + self.residual(normed)
        x = x / math.sqrt(2)
        x = x + self.after_ffw(self.ffw(self.before_ffw(x)))
        corrected, first = self.alternation.correct(predicted, x)
        added = self.gate(first, own)
        corrected = corrected.at[:, 1:].add(added[:, None])
        return corrected.reshape(stream.shape), pages, lent
