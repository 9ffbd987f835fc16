"""Layers that attend to the tokens which the indexer of an earlier layer chose (GLM-5).

Source: https://arxiv.org/abs/2603.12201. The choice is handed from layer to layer beside the
stream: layers without an indexer have no weights for one and cache no key for choosing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from model_server.kernels.chosen import Chosen
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.families.indexed.indexed_attention import IndexedLatentAttention
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.layers import run_layer, sum_and_norm
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rotary


class ChoosingLayer(PreNormLayer):
    """A pre-norm layer that takes and passes on which tokens queries attend to."""

    attention: IndexedLatentAttention

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        before: Chosen | None,
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, Chosen, LayerPages]:
        """As a call, with the tokens that were chosen last."""
        normed = self.before_attention(x)
        mixed, chosen, pages = self.attention.attend(normed, before, rotation, pages, batch)
        x, seen = sum_and_norm(self.before_ffw, x, mixed)
        return x + self.ffw(seen), chosen, pages


class ChoosingDecoder(Decoder):
    """A decoder whose layers pass on the tokens that queries attend to; all are `ChoosingLayer`.

    The first layer of a pipeline stage has an indexer (see `Recipe.choosers`).
    """

    def run(
        self,
        x: jax.Array,
        positions: jax.Array,
        pages: Sequence[LayerPages],
        batch: PagedBatch,
        media: Any = None,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]:
        """As `Decoder`; it takes no media."""
        assert media is None, "models of this kind see no images"
        rotations = {rope: rope and rope.at(positions) for rope in dict.fromkeys(self.ropes)}
        x, chosen = batch.divided(x), None
        written: list[LayerPages] = []
        for layer, rope, held in zip(self.layers, self.ropes, pages, strict=True):
            x, chosen, held = run_layer(layer, x, chosen, rotations[rope], held, batch)
            x = batch.divided(x)
            written.append(held)
        return x, tuple(written)
