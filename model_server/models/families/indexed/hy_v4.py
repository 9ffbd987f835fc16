"""Hy4: GLM-5's chosen tokens, with gated heads and sinks, over several residual streams.

Source: Tencent 2026, "Hy4"; names and config keys are those of Hugging Face's `HYV4ForCausalLM`.
Layers that draft are skipped: the reference defines none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.chosen import Chosen
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import HeadShape, LayerPages
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import norm_of
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.indexed.deepseek_v32 import choosing_cache, indexer_of
from model_server.models.families.indexed.glm_moe_dsa import (
    SHARING,
    ChoosingDecoder,
    ChoosingLayer,
    choosers_of,
    choosing_layers,
)
from model_server.models.families.indexed.indexed_attention import IndexedLatentAttention
from model_server.models.families.latent_recipe import (
    LATENT,
    LATENT_OFF,
    latent_recipe,
    latent_shape,
)
from model_server.models.families.sigmoid_experts import ROUTED, RoutedNames, routed_ffw
from model_server.models.known_keys import KnownKeys, all_in, ignored
from model_server.models.layers.hyper_connections import AddedStreams, StreamsNorm, StreamWeights
from model_server.models.layers.layers import BoundedGate, Names, activation_of
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rotary, rope_of
from model_server.models.recipe import Family, Recipe
from sax.errors import CheckpointError


class StreamsLayer(nnx.Module):
    """A layer whose halves read and write several residual streams."""

    def __init__(self, parts: PreNormLayer, attention: AddedStreams, ffw: AddedStreams) -> None:
        self.parts = parts
        self.of_attention = attention
        self.of_ffw = ffw

    def __call__(
        self,
        x: jax.Array,  # f32[T, N D]
        before: Chosen | None,
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, Chosen, LayerPages]:
        layer = self.parts
        assert isinstance(layer, ChoosingLayer), "its attention tells what was chosen"
        seen, weights = self.of_attention.read(x)
        seen = layer.before_attention(seen)
        mixed, chosen, pages = layer.attention.attend(seen, before, rotation, pages, batch)
        x = self.of_attention.added(x, mixed, weights)
        seen, weights = self.of_ffw.read(x)
        return self.of_ffw.added(x, layer.ffw(layer.before_ffw(seen)), weights), chosen, pages


class StreamsDecoder(ChoosingDecoder):
    """A decoder of such layers."""

    def __init__(self, *, streams: int, **parts: Any) -> None:
        super().__init__(**parts)
        self.streams = streams

    def embed(self, tokens: jax.Array, positions: jax.Array, media: Any = None) -> jax.Array:
        """Returns f32[T, N D]: all streams begin alike. It takes no media."""
        return jnp.tile(super().embed(tokens, positions, media), (1, self.streams))


_STREAMS = ("hc_eps", "hc_magnitude", "hc_mult")
KEYS = KnownKeys(
    "hy_v4",
    (
        *LATENT,
        *ROUTED,
        *SHARING,
        *_STREAMS,
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "mlp_layer_types",
        "swiglu_limit",
    ),
    {
        **LATENT_OFF,
        **ignored("learnable_sink_init"),  # where training began
        "layer_types": all_in("indexed_attention"),
    },
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "hc_eps": 1e-6,
    "hc_magnitude": 2.0,
    "hc_mult": 4,
    "index_head_dim": 128,
    "index_n_heads": 16,
    "index_skip_topk_offset": 2,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 768,
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 192,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.827,
    "swiglu_limit": 10.0,
    "topk_group": 1,
    "v_head_dim": 256,
}
_PARTS = {"gate": "gate_proj", "sinks": "sinks"}  # by the spelling of checkpoints/text_part


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = dict(config or {})
    if "num_local_experts" in given:
        given["n_routed_experts"] = given.pop("num_local_experts")
    keys = ConfigKeys(given, KEYS, _DEFAULTS)
    shape, chooses = latent_shape(keys), choosing_layers(keys)
    found = indexer_of(keys)
    indexer = replace(found, epsilon=keys.number("rms_norm_eps"), rotates_last=True)
    streams, magnitude = keys.whole("hc_mult"), keys.number("hc_magnitude")
    sizes = shape.embed, streams
    small = {"epsilon": keys.number("rms_norm_eps"), "least": keys.number("hc_eps")}
    recipe = latent_recipe(
        keys,
        values,
        listed_sparse(keys),
        routed_ffw(
            keys,
            names=RoutedNames(together=True),
            gate=_bounded(keys),
            shared_gate=activation_of("silu"),
        ),
        attentions=[
            partial(IndexedLatentAttention, indexer, chooses=own, **_PARTS) for own in chooses
        ],
        layer_kind=ChoosingLayer,
        decoder_kind=partial(StreamsDecoder, streams=streams),
        rope=rope_of(keys.all, shape.rotated_dim),
        unused=("model.mtp_layers.",),
        around=lambda layer, prefix: StreamsLayer(
            layer,
            *(
                AddedStreams(*sizes, _sources(f"{prefix}.{part}.hc"), magnitude=magnitude, **small)
                for part in ("hc_attn_layer", "hc_mlp_layer")
            ),
        ),
        final_norm=lambda name: StreamsNorm(
            StreamWeights(*sizes, (streams,), _sources("model.hc_head.hc"), **small),
            norm_of(keys, name),
        ),
    )
    narrow = HeadShape(1, shape.latent + shape.rotated_dim, 0)
    others = tuple(None if own else narrow for own in chooses) if not all(chooses) else ()
    cached = choosing_cache(keys, indexer, others)
    return replace(
        recipe,
        cache=lambda shards: replace(cached(shards), plain=True),
        choosers=choosers_of(chooses),
        carried=streams * shape.embed,
        own_head=None,
    )


def _bounded(keys: ConfigKeys) -> BoundedGate:
    """Raises CheckpointError."""
    if (bound := keys.number("swiglu_limit")) <= 0:
        raise CheckpointError(
            f"config.json has swiglu_limit = {bound}; the hy_v4 family supports numbers above 0"
        )
    return BoundedGate(bound)


def _sources(name: str) -> list[Names]:
    """Names of a matrix, offsets and factors."""
    return [(f"{name}_{part}",) for part in ("fn", "base", "scale")]


FAMILY = Family("hy_v4", ("hy_v4",), "Hy4", configure, own_types_only=True)
