"""Qwen4: Qwen3.5's layers over several residual streams, n-grams, attention in blocks; images.

To the engine a layer that attends is two, one of which caches keys for choosing blocks.
Source: Qwen Team 2026, "Qwen4-Exp"; names and config keys are those of Hugging Face's
`Qwen4ExpForConditionalGeneration`. Layers that draft are skipped: the reference defines none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.checkpoints.ngram_hashes import NGramHashes, ngram_hashes
from model_server.kernels.media_vectors import MediaVectors
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import CacheShape, LayerPages, StateArray
from model_server.kernels.row_sums import logistic, silu
from model_server.kernels.states import State
from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import decoder_recipe
from model_server.models.families.experts.qwen2_moe import shared_ffw
from model_server.models.families.indexed.minimax_m3 import BlockAttention
from model_server.models.families.indexed.whole_blocks import (
    AttendingLayer,
    BlockChooser,
    ChooserShape,
    MadeFor,
)
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3_moe import routed_ffw
from model_server.models.families.recurrent.delta_recipe import (
    DELTA,
    DELTA_DEFAULTS,
    delta_shape,
    gated_attention,
)
from model_server.models.families.recurrent.qwen3_5 import OTHER_PARTS, delta_sources
from model_server.models.families.ropes import triple_rope
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.activations import Activation
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.delta_net import GatedDeltaNet
from model_server.models.layers.gated_streams import (
    LastMixture,
    StreamMixer,
    StreamsFfw,
    StreamsShape,
    added,
)
from model_server.models.layers.layers import run_layer
from model_server.models.layers.ngrams import NGrams, NGramShape, shard_names
from model_server.models.layers.rope import Rope, Rotary
from model_server.models.media.media_recipe import MediaRecipe, encoders
from model_server.models.media.qwen.tower import TowerShape
from model_server.models.media.qwen.tower_keys import learned_tower
from model_server.models.media.qwen.vision_encoder import OUTER, QWEN3, qwen_vision
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError


class DeltaLayer(nnx.Module):
    """A layer with a gated delta network, and perhaps a table of n-grams before it."""

    def __init__(
        self, ngrams: NGrams | None, mixer: StreamMixer, delta: GatedDeltaNet, ffw: StreamsFfw
    ) -> None:
        self.ngrams, self.mixer, self.delta, self.ffw = ngrams, mixer, delta, ffw

    def __call__(
        self,
        x: jax.Array,  # f32[T, N D]
        tokens: jax.Array,  # f32[T, 1], or f32[T, 0] in a model without n-grams
        positions: jax.Array,
        before: MadeFor | None,
        rotation: Rotary | None,
        pages: State,
        batch: PagedBatch,
    ) -> tuple[jax.Array, None, State]:
        """Returns the streams and the states with those of the new tokens."""
        recalled: State = ()
        if self.ngrams is not None:
            more, recalled = self.ngrams(x, tokens[:, 0], pages[-2:], batch)
            x, pages = x + more, pages[:-2]
        seen, weights = self.mixer.read(x)
        mixed, state = self.delta(seen, rotation, pages, batch)
        return self.ffw(added(x, mixed, weights)), None, (*state, *recalled)


class GatedStreamsDecoder(Decoder):
    """A decoder of such layers. A row is the streams, then the token if layers recall it."""

    def __init__(
        self,
        *,
        streams: int,
        stream: int,  # numbers of all of them
        recalls: bool,
        image: int,  # token that n-grams see in the places of images
        **parts: Any,
    ) -> None:
        super().__init__(**parts)
        self.streams, self.stream, self.recalls, self.image = streams, stream, recalls, image

    def embed(
        self, tokens: jax.Array, positions: jax.Array, media: MediaVectors | None = None
    ) -> jax.Array:
        """Returns rows; all streams begin alike."""
        x = jnp.tile(super().embed(tokens, positions, media), (1, self.streams))
        if not self.recalls:
            return x
        told = jnp.where(tokens < 0, self.image, tokens).astype(jnp.float32)
        return jnp.concatenate([x, told[:, None]], axis=-1)

    def run(
        self,
        x: jax.Array,
        positions: jax.Array,
        pages: Sequence[LayerPages],
        batch: PagedBatch,
        media: MediaVectors | None = None,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]:
        """As `Decoder`, of rows."""
        rotations = {rope: rope and rope.at(positions) for rope in dict.fromkeys(self.ropes)}
        tokens, made = x[:, self.stream :], None
        x = batch.divided(x[:, : self.stream])
        written: list[LayerPages] = []
        for layer, rope, held in zip(self.layers, self.ropes, pages, strict=True):
            x, made, held = run_layer(
                layer, x, tokens, positions, made, rotations[rope], held, batch
            )
            x = batch.divided(x)
            written.append(held)
        return jnp.concatenate([x, tokens], axis=-1), tuple(written)


_INDEXER = (
    "indexer_budget",
    "indexer_compress_ratio",
    "indexer_head_dim",
    "indexer_kv_heads",
    "indexer_n_heads",
)
_NGRAMS = (
    "eos_token_id",
    "heads_per_ngram",
    "make_ngram_vocab_size_divisible_by",
    "ngram_size",
    "ngram_vocab_size_base",
    "ple_conv_kernel_size",
    "ple_embed_dim",
    "ple_layer_ids",
    "seed",
    "split_ngram_parts",
)
KEYS = KnownKeys(
    "qwen4_exp",
    (
        *(key for key in DECODER if key != "intermediate_size"),
        *DELTA,
        *OUTER,
        *_INDEXER,
        *_NGRAMS,
        "experts_apart",  # not of config.json: see checkpoints/opening.py
        "hc_count",
        "hc_lowrank",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
        "output_gate_type",
        "shared_expert_intermediate_size",
    ),
    {**DECODER_OFF, **OTHER_PARTS, **ignored("intermediate_size", "number_of_conv_states")},
)
_DEFAULTS = {
    **DELTA_DEFAULTS,
    "hc_count": 4,
    "hc_lowrank": 320,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "partial_rotary_factor": 1.0,
    "ple_conv_kernel_size": 4,
    "rms_norm_eps": 1e-6,
    "shared_expert_intermediate_size": 512,
    "split_ngram_parts": 512,
}
_KINDS = {"linear_attention": False, "full_attention": True, "indexed_attention": True}
_OPENS: Mapping[str, Activation] = {"silu": silu, "sigmoid": logistic}
_IMAGES = replace(QWEN3, tokens=(248056, 248057))
_TABLE = "ple.ple_embedding.ngram_embedding"


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, attends = attention_shape(keys), _attending(keys)
    media = qwen_vision(keys, values, _tower, _IMAGES, shape.embed)
    share = keys.number("partial_rotary_factor")
    rope = triple_rope(keys, shape.head_dim, (11, 11, 10), base=1e4, in_turn=True, share=share)
    build = _Layers(keys, rope, attends, placed=media is not None)
    stream, ngrams = build.streams.width, bool(build.ngrams)
    image = keys.whole("image_token_id", _IMAGES.tokens[0], least=0)

    def decoder(**parts: Any) -> GatedStreamsDecoder:
        return GatedStreamsDecoder(
            streams=build.streams.streams,
            stream=stream,
            recalls=ngrams,
            image=image,
            **parts,
        )

    recipe = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope if attends[of] else None for of, _ in build.parts],
        layer=build.layer,
        norm=build.last,
        states=build.states,
        others=[build.chooser.cached if chooses else None for _, chooses in build.parts],
        kind=decoder,
    )
    return replace(
        recipe,
        cache=lambda shards: _plain(recipe.cache(shards)),
        choosers=tuple(
            at - 1 if attends[of] and not chooses else None
            for at, (of, chooses) in enumerate(build.parts)
        ),
        carried=stream + ngrams,
        media=encoders(_without_videos(media) if ngrams else media),
        unused=("mtp.",),
    )


class _Layers:
    """Builds the layers of a checkpoint. Raises CheckpointError."""

    def __init__(
        self, keys: ConfigKeys, rope: Rope, attends: Sequence[bool], *, placed: bool
    ) -> None:
        self.keys, self.attends, self.streams = keys, attends, _streams_shape(keys)
        # Each layer's number in the checkpoint, and whether it is the part that chooses
        self.parts = [
            (at, part) for at, its in enumerate(attends) for part in (True, False)[not its :]
        ]
        self.chooser = _chooser_shape(keys, rope, placed=placed)
        self.ngrams = _ngram_shapes(keys, attends)
        self.delta, self.shape = delta_shape(keys), attention_shape(keys)
        together = not keys.flag("experts_apart")
        self.ffw = routed_ffw(keys, shared=shared_ffw(keys), together=together)
        keys.only("hidden_act", "silu")  # of experts and convolutions
        self.opens = _OPENS[keys.only("output_gate_type", *_OPENS)]

    def layer(self, index: int, form: WeightForm) -> nnx.Module:
        of, chooses = self.parts[index]
        name = f"model.layers.{of}"
        if chooses:
            mixer = StreamMixer(self.streams, f"{name}.attn_hyper_connection", form)
            return BlockChooser(self.chooser, mixer, f"{name}.self_attn.indexer", form)
        mixer = StreamMixer(self.streams, f"{name}.mlp_hyper_connection", form)
        ffw = StreamsFfw(mixer, self.ffw(name, form))
        if self.attends[of]:
            attention = gated_attention(self.keys, name, self.shape, form, BlockAttention)
            assert isinstance(attention, BlockAttention)
            return AttendingLayer(attention, ffw)
        mixer = StreamMixer(self.streams, f"{name}.attn_hyper_connection", form)
        sources = delta_sources(self.delta, f"{name}.linear_attn")
        delta = GatedDeltaNet(self.delta, sources, form, opens=self.opens)
        return DeltaLayer(self._ngrams(of, name, form), mixer, delta, ffw)

    def last(self, name: str) -> LastMixture:
        """Return what stands in the place of the last norm, like norms in float32."""
        form = WeightForm(dtype=jnp.float32)
        name = "model.hyper_connection_mixer"
        mixer = StreamMixer(self.streams, name, form, writes=False)
        return LastMixture(mixer, self.streams.width)

    def states(self, shards: int) -> tuple[tuple[StateArray, ...] | None, ...]:
        """As `recipe.States`."""
        delta = self.delta.states(shards)
        recalled = {of: shape.states() for of, shape in self.ngrams.items()}
        return tuple(
            None if self.attends[of] else (*delta, *recalled.get(of, ())) for of, _ in self.parts
        )

    def _ngrams(self, layer: int, name: str, form: WeightForm) -> NGrams | None:
        shape = self.ngrams.get(layer)
        if shape is None:
            return None
        table = shard_names(f"{name}.{_TABLE}", self.keys.whole("split_ngram_parts"))
        return NGrams(shape, f"{name}.ple", table, form)


def _streams_shape(keys: ConfigKeys) -> StreamsShape:
    return StreamsShape(
        streams=keys.whole("hc_count", least=2),
        embed=keys.whole("hidden_size"),
        rank=keys.whole("hc_lowrank"),
        epsilon=keys.number("rms_norm_eps"),
    )


def _attending(keys: ConfigKeys) -> list[bool]:
    found = kinds_of_layers(keys, _KINDS)
    if found is not None:
        return found
    every = keys.whole("full_attention_interval", 4)
    return [(index + 1) % every == 0 for index in range(keys.whole("num_hidden_layers"))]


def _chooser_shape(keys: ConfigKeys, rope: Rope, *, placed: bool) -> ChooserShape:
    """Raises CheckpointError."""
    budget, size = keys.whole("indexer_budget"), keys.whole("indexer_compress_ratio")
    dim, rotated = keys.whole("indexer_head_dim"), 2 * len(rope.frequencies)
    keys.only("indexer_kv_heads", 1)
    if budget % size or dim < rotated:
        raise CheckpointError(
            f"config.json has indexer_budget = {budget}, indexer_compress_ratio = {size} and "
            f"indexer_head_dim = {dim}; the qwen4_exp family needs a budget of whole blocks, and "
            f"heads of at least the {rotated} numbers that are rotated"
        )
    return ChooserShape(
        embed=keys.whole("hidden_size"),
        heads=keys.whole("indexer_n_heads"),
        dim=dim,
        size=size,
        most=budget // size,
        epsilon=keys.number("rms_norm_eps"),
        placed=placed,
        rope=rope,
    )


def _ngram_shapes(keys: ConfigKeys, attends: Sequence[bool]) -> dict[int, NGramShape]:
    """Return the shapes of the layers with n-grams, by their number. Raises CheckpointError."""
    given = keys.get("ple_layer_ids", [])
    fits = isinstance(given, list) and all(type(each) is int for each in given)
    if not fits or any(not 1 <= each <= len(attends) or attends[each - 1] for each in given):
        raise CheckpointError(
            f"config.json has ple_layer_ids = {given!r}; the qwen4_exp family needs numbers of "
            "layers with linear_attention, from 1"
        )
    layers = sorted(set(given))
    tables = ngram_hashes(keys.all, len(layers)) if layers else ()
    return {layer - 1: _ngram_shape(keys, of) for layer, of in zip(layers, tables, strict=True)}


def _ngram_shape(keys: ConfigKeys, hashes: NGramHashes) -> NGramShape:
    """Raises CheckpointError."""
    embed, ends = keys.whole("hidden_size"), keys.get("eos_token_id")
    size, heads = keys.whole("ple_embed_dim", embed), len(hashes.sizes)
    separator = ends[0] if isinstance(ends, list) and ends else ends
    if size % heads or type(separator) is not int:
        raise CheckpointError(
            f"config.json has ple_embed_dim = {size} and eos_token_id = {ends!r}; the qwen4_exp "
            f"family needs a multiple of the {heads} heads of n-grams, and a token that ends texts"
        )
    return NGramShape(
        embed=embed,
        streams=keys.whole("hc_count"),
        size=size,
        width=keys.whole("ple_conv_kernel_size"),
        separator=separator,
        hashes=hashes,
        epsilon=keys.number("rms_norm_eps"),
    )


def _plain(cache: CacheShape) -> CacheShape:
    return replace(cache, chosen=True, plain=True)


def _tower(keys: ConfigKeys) -> TowerShape:
    return learned_tower(keys, ())


def _without_videos(media: MediaRecipe | None) -> MediaRecipe | None:
    """A step does not tell images from videos, whose tokens n-grams tell apart."""
    return media and replace(media, video=None)


FAMILY = Family(
    "qwen4_exp", ("qwen4_exp_text", "qwen4_exp"), "Qwen4", configure, own_types_only=True
)
