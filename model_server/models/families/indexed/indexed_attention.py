"""Latent attention to the tokens that an indexer of few small heads scores highest.

Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp: boosting long-context efficiency with DeepSeek sparse
attention". The indexer's key is cached behind the latent vector of each token. The published code
rotates both sides of its products by Hadamard matrices, which changes nothing, and rounds them to
float8, which is not done here, as in transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.chosen import Choosing, Chosen, attend_to_chosen
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.layers.latent_attention import LatentAttention, LatentShape
from model_server.models.layers.layers import LayerNorm, Linear
from model_server.models.layers.rope import Rotary
from model_server.models.weights.weight import WeightForm, weight

_EPSILON = 1e-6  # of the norm over the indexer's keys


@dataclass(frozen=True, slots=True)
class IndexerShape:
    heads: int
    dim: int
    most: int  # tokens that each query attends to
    epsilon: float = _EPSILON
    rotates_last: bool = False  # the last numbers of its heads; False: the first ones
    pool: int | None = None  # tokens of a pool, which is chosen whole; None: each by itself

    @property
    def cached(self) -> int:
        """Numbers cached for choosing by: a key and, in a pool, how much each of them counts."""
        return self.dim if self.pool is None else 2 * self.dim


class Indexer(nnx.Module):
    """Makes the vectors by which queries choose tokens."""

    def __init__(
        self, shape: IndexerShape, embed: int, query_latent: int, prefix: str, form: WeightForm
    ) -> None:
        self.shape = shape

        def linear(name: str, outputs: int, inputs: int) -> Linear:
            source = (f"{prefix}.{name}.weight",)
            return Linear(outputs, inputs, (None, None), source, form=form)

        self.queries = linear("wq_b", shape.heads * shape.dim, query_latent)
        self.key = linear("wk", shape.dim, embed)
        self.weights = linear("weights_proj", shape.heads, embed)
        norm = f"{prefix}.k_norm"
        self.norm = LayerNorm(
            shape.dim, (f"{norm}.weight",), (f"{norm}.bias",), epsilon=shape.epsilon
        )
        if shape.pool is not None:
            name, f32 = f"{prefix}.index_kpool_compress", jnp.float32
            self.counts = Linear(shape.dim, embed, (None, None), (f"{name}_gate",), form=form)
            sizes = (shape.pool, shape.dim)
            self.places = weight(sizes, (None, None), (f"{name}_ape",), dtype=f32, spread=0.0)

    def choosing(self, x: jax.Array, narrow: jax.Array, rotation: Rotary | None) -> Choosing:
        """Map the residual stream f32[T, D] and what queries are made of, f32[T, R]."""
        s = self.shape
        queries = self._turned(self.queries(narrow).reshape(-1, s.heads, s.dim), rotation)
        return Choosing(queries * s.dim**-0.5, self.weights(x) * s.heads**-0.5)

    def keys(self, x: jax.Array, rotation: Rotary | None) -> jax.Array:
        """f32[T, 1, cached]: for later queries to choose by."""
        keys = self._turned(self.norm(self.key(x))[:, None], rotation)
        if self.shape.pool is None:
            return keys
        return jnp.concatenate([keys, self.counts(x)[:, None]], axis=-1)

    @property
    def pools(self) -> jax.Array | None:
        """f32[pool, I], added to how much a key counts, by its place; None: there are no pools."""
        return None if self.shape.pool is None else self.places[...]

    def _turned(self, x: jax.Array, rotation: Rotary | None) -> jax.Array:
        """Rotate part of f32[T, heads, I]; that it lies first then changes no product."""
        if rotation is None:
            return x
        if self.shape.rotates_last:
            x = jnp.roll(x, 2 * rotation.cos.shape[-1], axis=-1)
        return rotation(x)


class IndexedLatentAttention(LatentAttention):
    """Latent attention to chosen tokens."""

    def __init__(
        self,
        indexer: IndexerShape,
        shape: LatentShape,
        prefix: str,
        form: WeightForm,
        *,
        chooses: bool = True,  # False: it takes what a layer before it chose
        indexer_kind: type[Indexer] = Indexer,
        interleaved: bool = False,  # pairs that the indexer rotates; False: half a head apart
        **parts: Any,  # as of `LatentAttention`
    ) -> None:
        super().__init__(shape, prefix, form, **parts)
        self.most, self.interleaved = indexer.most, interleaved
        self.chooses = chooses
        if chooses:
            name = f"{prefix}.indexer"
            narrow = shape.query_latent or shape.embed
            self.indexer = indexer_kind(indexer, shape.embed, narrow, name, form)

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        rotation: Rotary | None,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages]:
        """Returns f32[T, D] and the pages with the new tokens written."""
        mixed, _, pages = self.attend(x, None, rotation, pages, batch)
        return mixed, pages

    def attend(
        self,
        x: jax.Array,  # f32[T, D]
        before: Chosen | None,  # by the last layer with an indexer
        rotation: Rotary | None,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, Chosen, LayerPages]:
        """As a call, with the tokens that are attended to."""
        s, choosing, keys = self.shape, before, self.latent_keys(x, rotation)
        made = self.head_inputs(x)
        how = {"most": self.most, "scale": s.scale, "sinks": self.scores()}
        if self.chooses:
            turn = rotation and replace(rotation, interleaved=self.interleaved)
            choosing = self.indexer.choosing(x, made.narrow, turn)
            keys = jnp.concatenate([keys, self.indexer.keys(x, turn)], axis=-1)
            how["pools"] = self.indexer.pools
        assert choosing is not None, "the first layer has an indexer"
        queries = self.latent_queries(made, rotation)
        mixed, pages, chosen = attend_to_chosen(batch, pages, queries, keys, choosing, **how)
        return self.of_latents(mixed[..., : s.latent], made), chosen, pages
