"""Hy4: GLM-5's chosen tokens, with gated heads and sinks, over several residual streams.

Source: Tencent 2026, "Hy4"; names and config keys are those of Hugging Face's `HYV4ForCausalLM`.
Layers that draft are skipped: the reference defines none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.kernels.chosen import Chosen
from model_server.kernels.media_vectors import MediaVectors
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import HeadShape
from model_server.kernels.row_sums import balanced, logistic, mixed_streams, rounded, row_softmax
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
from model_server.models.layers.activations import BoundedGate, activation_of
from model_server.models.layers.gated_streams import added
from model_server.models.layers.layers import LiveRows, Names, live_of, project_finely, unit_rows
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rotary, rope_of
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import weight
from sax.errors import CheckpointError

# Hyper-connections: several residual streams, from which each half of a layer reads a mixture.
#
# Source: Zhu et al. 2024, "Hyper-Connections" (arXiv:2409.19606). Here what a half makes is added
# to each stream with a weight of its own, and streams do not mix.


class StreamWeights(nnx.Module):
    """Makes weights for each of N streams, from all of them; in float32, as routers.

    shares: parts of N weights each that have one factor, of each factor.
    """

    def __init__(
        self,
        embed: int,
        streams: int,
        shares: Sequence[int],
        sources: Sequence[Names],  # of the matrix, the offsets and the factors
        *,
        epsilon: float,
        least: float,
    ) -> None:
        matrix, offsets, factors = sources
        outputs, f32 = sum(shares) * streams, jnp.float32
        self.streams, self.epsilon, self.least = streams, epsilon, least
        self.spans = tuple(share * streams for share in shares)  # weights that have one factor
        self.kernel = weight(
            (outputs, streams * embed), (None, None), matrix, dtype=f32, spread=0.02
        )
        self.offsets = weight((outputs,), (None,), offsets, dtype=f32, spread=0.0)
        self.factors = weight((len(shares),), (None,), factors, dtype=f32)
        self.live: LiveRows = nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps the streams f32[T, N D] to f32[T, parts, N], of 0 to 1."""
        return logistic(self.made(x)).reshape(len(x), -1, self.streams)

    def made(self, x: jax.Array) -> jax.Array:
        """Maps the streams f32[T, N D] to f32[T, parts N]."""
        live = live_of(self)
        made = project_finely(unit_rows(x, self.epsilon, live), self.kernel[...], live)
        factors = jnp.repeat(self.factors[...], np.asarray(self.spans))
        return rounded(made * factors[None]) + self.offsets[...][None]

    def mixed(self, x: jax.Array, weights: jax.Array) -> jax.Array:
        """Return f32[T, D], the streams f32[T, N D] weighted by f32[T, N] and added up."""
        shares = (weights + self.least)[..., None]
        return mixed_streams(x.reshape(len(x), self.streams, -1), shares)[:, 0]


class HyperConnection(StreamWeights):
    """Mixes the residual streams into the input of a half layer, and adds its output to them."""

    def __init__(self, *args: Any, magnitude: float, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.magnitude = magnitude  # of what is added

    def read(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return f32[T, D], and the weights f32[T, N] of what is added."""
        made = self(x)
        return self.mixed(x, made[:, 0]), rounded(self.magnitude * made[:, 1]) + self.least

    def added(self, x: jax.Array, made: jax.Array, weights: jax.Array) -> jax.Array:
        """Return the streams f32[T, N D] with f32[T, D] added by weights f32[T, N]."""
        return added(x, made, weights)


class MixingConnection(StreamWeights):
    """Mixes the residual streams into the input of a half layer, and its output into their mixture.

    Source: Xie et al. 2025, "mHC: Manifold-Constrained Hyper-Connections" (arXiv:2512.24880); the
    matrix is made by the algorithm of Sinkhorn and Knopp, in a fixed number of rounds.

    It makes N + 2 parts of weights: of what is read, of what is added, and the rows of the matrix.
    """

    def __init__(self, *args: Any, rounds: int, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.rounds = rounds

    def read(self, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Return f32[T, D], and the weights f32[T, N] of what is added and f32[T, N, N]."""
        parts = self.made(x).reshape(len(x), -1, self.streams)
        reading, adding = (logistic(parts[:, at]) for at in (0, 1))
        rows = row_softmax(parts[:, 2:]) + self.least  # from each stream to each
        return self.mixed(x, reading), (2.0 * adding, balanced(rows, self.least, self.rounds))

    def added(
        self, x: jax.Array, made: jax.Array, weights: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        """Return the streams f32[T, N D], mixed, with f32[T, D] added."""
        adding, mixing = weights
        streams = x.reshape(len(x), self.streams, -1)
        return mixed_streams(streams, mixing, adding, made).reshape(x.shape)


class StreamsNorm(nnx.Module):
    """The last norm, of a mixture of the streams."""

    def __init__(self, head: StreamWeights, norm: nnx.Module) -> None:
        self.head = head
        self.norm = norm

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, N D] to f32[T, D]."""
        return self.norm(self.head.mixed(x, self.head(x)[:, 0]))


class StreamMixing(Protocol):
    """Mixes streams f32[T, N D] into what a half layer reads, and what it makes into them."""

    def read(self, x: jax.Array) -> tuple[jax.Array, Any]:
        """Return f32[T, D], and what `added` wants."""
        ...

    def added(self, x: jax.Array, made: jax.Array, weights: Any) -> jax.Array:
        """Return the streams f32[T, N D] with what a half layer made, f32[T, D]."""
        ...


class StreamsLayer(nnx.Module):
    """A layer whose halves read and write several residual streams."""

    def __init__(self, parts: PreNormLayer, attention: StreamMixing, ffw: StreamMixing) -> None:
        self.parts = parts
        self.of_attention = attention
        self.of_ffw = ffw

    def __call__(
        self,
        x: jax.Array,  # f32[T, N D]
        before: Chosen | None,
        rotation: Rotary | None,
        pages: Any,  # LayerPages, or the states of a layer that does not attend
        batch: PagedBatch,
    ) -> tuple[jax.Array, Chosen | None, Any]:
        layer, chosen = self.parts, None
        seen, weights = self.of_attention.read(x)
        seen = layer.before_attention(seen)
        if isinstance(layer.attention, IndexedLatentAttention):
            mixed, chosen, pages = layer.attention.attend(seen, before, rotation, pages, batch)
        else:
            mixed, pages = layer.attention(seen, rotation, pages, batch)
        x = self.of_attention.added(x, mixed, weights)
        seen, weights = self.of_ffw.read(x)
        made = layer.ffw(layer.before_ffw(seen))
        return self.of_ffw.added(x, made, weights), chosen, pages


class StreamsDecoder(ChoosingDecoder):
    """A decoder of such layers."""

    def __init__(self, *, streams: int, **parts: Any) -> None:
        super().__init__(**parts)
        self.streams = streams

    def embed(
        self, tokens: jax.Array, positions: jax.Array, media: MediaVectors | None = None
    ) -> jax.Array:
        """Returns f32[T, N D]: all streams begin alike."""
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
    streams = keys.whole("hc_mult")
    recipe = latent_recipe(
        keys,
        values,
        listed_sparse(keys),
        routed_ffw(
            keys,
            names=RoutedNames(together=True),
            gate=bounded_gate(keys),
            shared_gate=activation_of(keys.get("hidden_act", "silu")),
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
            _connection(keys, f"{prefix}.hc_attn_layer"),
            _connection(keys, f"{prefix}.hc_mlp_layer"),
        ),
        final_norm=lambda name: StreamsNorm(
            stream_weights(StreamWeights, keys, (1,), "model.hc_head.hc"), norm_of(keys, name)
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


def bounded_gate(keys: ConfigKeys) -> BoundedGate:
    """Raises CheckpointError."""
    if (bound := keys.number("swiglu_limit")) <= 0:
        raise CheckpointError(
            f"config.json has swiglu_limit = {bound}; the {keys.family} family supports numbers "
            "above 0"
        )
    return BoundedGate(bound)


def stream_weights(
    kind: Any, keys: ConfigKeys, shares: Sequence[int], name: str, **rest: Any
) -> Any:
    """Build a kind of `StreamWeights` under these names."""
    sources: list[Names] = [(f"{name}_{part}",) for part in ("fn", "base", "scale")]
    return kind(
        keys.whole("hidden_size"),
        keys.whole("hc_mult"),
        shares,
        sources,
        epsilon=keys.number("rms_norm_eps"),
        least=keys.number("hc_eps"),
        **rest,
    )


def _connection(keys: ConfigKeys, name: str) -> HyperConnection:
    magnitude = keys.number("hc_magnitude")
    return stream_weights(HyperConnection, keys, (1, 1), f"{name}.hc", magnitude=magnitude)


FAMILY = Family("hy_v4", ("hy_v4",), "Hy4", configure, own_types_only=True)
