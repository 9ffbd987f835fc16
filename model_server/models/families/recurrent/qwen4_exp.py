"""Qwen4: Qwen3.5's layers over several residual streams, n-grams, attention in blocks; images.

To the engine a layer that attends is two, one of which caches keys for choosing blocks.
Source: Qwen Team 2026, "Qwen4-Exp"; names and config keys are those of Hugging Face's
`Qwen4ExpForConditionalGeneration`. Layers that draft are skipped: the reference defines none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.ngram_hashes import NGramHashes, ngram_hashes
from model_server.kernels.chosen import Chosen
from model_server.kernels.chosen_blocks import WholeBlocks, choose_whole_blocks
from model_server.kernels.media_vectors import MediaVectors
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import CacheShape, HeadShape, LayerPages, StateArray
from model_server.kernels.row_sums import logistic, silu
from model_server.kernels.states import State
from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import decoder_recipe
from model_server.models.families.experts.qwen2_moe import shared_ffw
from model_server.models.families.indexed.minimax_m3 import BlockAttention
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
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.delta_net import GatedDeltaNet
from model_server.models.layers.feed_forward import FeedForward
from model_server.models.layers.layers import (
    Activation,
    Linear,
    RmsNorm,
    run_layer,
    sum_in_order,
)
from model_server.models.layers.ngrams import NGrams, NGramShape, StreamNorms, shard_names
from model_server.models.layers.rope import Rope, Rotary
from model_server.models.media.media_recipe import MediaRecipe
from model_server.models.media.qwen.learned_tower import learned_tower
from model_server.models.media.qwen.tower import TowerShape
from model_server.models.media.qwen.vision_encoder import OUTER, QWEN3, qwen_vision
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# Residual streams: each half of a layer reads a gated mean of them, and adds what it makes to each
# with a weight of its own. The gates of every number come from all streams through a low rank.


@dataclass(frozen=True, slots=True)
class ShrunkSilu:
    """silu(x / by)"""

    by: int

    def __call__(self, x: jax.Array) -> jax.Array:
        return silu(x / self.by)


class StreamMixer(nnx.Module):
    """Mixes the streams; one that `writes` also weighs what is added to each."""

    def __init__(self, keys: ConfigKeys, name: str, form: WeightForm, *, writes: bool) -> None:
        streams, embed = keys.whole("hc_count", least=2), keys.whole("hidden_size")
        epsilon, rank = keys.number("rms_norm_eps"), keys.whole("hc_lowrank")
        self.streams, self.writes = streams, writes
        self.norms = StreamNorms(streams, embed, f"{name}.hc_norm", epsilon=epsilon)
        self.gates = FeedForward(
            streams * embed,
            rank,
            up=(f"{name}.input_mix_weight_down.weight",),
            down=(f"{name}.input_mix_weight_up.weight",),
            activation=ShrunkSilu(streams),
            form=form,
        )
        if writes:
            # A row for each stream is too few for the native products and not worth quantising.
            plain = replace(form, quantization=None, tiles=False, adapters=None)
            source = (f"{name}.block_inject_weight.weight",)
            self.shares = Linear(streams, streams * embed, (None, "embed"), source, form=plain)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps the streams f32[T, N D] to f32[T, D]."""
        normed = self.norms(x)
        return self._mixed(normed, normed.reshape(x.shape))

    def read(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return f32[T, D], and the weights f32[T, N] of what is added, of 0 to 2."""
        normed = self.norms(x)
        flat = normed.reshape(x.shape)
        return self._mixed(normed, flat), 2 * logistic(self.shares(flat) / self.streams)

    def _mixed(self, normed: jax.Array, flat: jax.Array) -> jax.Array:
        gates = logistic(self.gates(flat)).reshape(normed.shape)
        return sum_in_order(gates * normed, axis=1) / self.streams


def added(x: jax.Array, made: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the streams f32[T, N D] with f32[T, D] added by weights f32[T, N]."""
    return x + (weights[..., None] * made[:, None]).reshape(x.shape)


class MadeFor(NamedTuple):
    """What a `BlockChooser` hands to the layer behind it, which attends."""

    chosen: Chosen
    seen: jax.Array  # f32[T, D]
    weights: jax.Array  # f32[T, N]


class StreamsFfw(nnx.Module):
    """The second half of a layer."""

    def __init__(self, mixer: StreamMixer, ffw: nnx.Module) -> None:
        self.mixer, self.ffw = mixer, ffw

    def __call__(self, x: jax.Array) -> jax.Array:
        seen, weights = self.mixer.read(x)
        return added(x, self.ffw(seen), weights)


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


# Positions of images are triples, which a block's first token must tell when its key is made, and
# which may have been computed long before. So they are cached behind its key: a largest number,
# then digits as parts of it, few enough to survive in any form of the cache.
_DIGIT_BITS, _DIGITS = 3, 8  # positions below 2**24, more than any model has
_PLACE_NUMBERS = 1 + 3 * _DIGITS


def with_places(keys: jax.Array, positions: jax.Array) -> jax.Array:
    """Append positions i32[T] or i32[3, T] to keys f32[T, 1, J]."""
    triples = jnp.broadcast_to(positions, (3, keys.shape[0])).T  # [T, 3]
    shifts = np.arange(_DIGITS) * _DIGIT_BITS
    digits = (triples[..., None] >> shifts[None, None]) & (2**_DIGIT_BITS - 1)
    parts = digits.reshape(len(keys), 1, -1).astype(jnp.float32) / (2**_DIGIT_BITS - 1)
    most = jnp.maximum(jnp.max(jnp.abs(keys), axis=-1, keepdims=True), 1e-6)
    return jnp.concatenate([keys, most, parts * most], axis=-1)


def places_of(numbers: jax.Array) -> jax.Array:
    """Return positions i32[3, M] from what `with_places` appended, f32[M, _PLACE_NUMBERS]."""
    parts = numbers[:, 1:] / jnp.maximum(numbers[:, :1], 1e-30)
    digits = jnp.round(parts * (2**_DIGIT_BITS - 1)).astype(jnp.int32).reshape(-1, 3, _DIGITS)
    shifts = np.arange(_DIGITS) * _DIGIT_BITS
    return jnp.sum(digits << shifts[None, None], axis=-1).T


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooserShape:
    embed: int
    heads: int
    dim: int
    size: int  # tokens of a block
    most: int  # blocks that a query sees
    epsilon: float
    placed: bool  # keys are cached with their positions
    rope: Rope

    @property
    def cached(self) -> HeadShape:
        return HeadShape(1, self.dim + _PLACE_NUMBERS * self.placed, 0)


class BlockChooser(nnx.Module):
    """Reads the streams for the layer behind it, and scores blocks by the mean of their keys."""

    def __init__(
        self, shape: ChooserShape, mixer: StreamMixer, name: str, form: WeightForm
    ) -> None:
        self.shape, self.mixer = shape, mixer
        source = (f"{name}.index_qk_proj.weight",)
        outputs = (shape.heads + 1) * shape.dim
        self.both = Linear(outputs, shape.embed, (None, "embed"), source, form=form)
        self.query_norm, self.key_norm = (
            RmsNorm(
                shape.dim,
                (f"{name}.{part}_layernorm.weight",),
                epsilon=shape.epsilon,
                plus_one=True,
            )
            for part in "qk"
        )

    def __call__(
        self,
        x: jax.Array,  # f32[T, N D]
        tokens: jax.Array,
        positions: jax.Array,  # i32[T] or i32[3, T]
        before: MadeFor | None,
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, MadeFor, LayerPages]:
        """Returns the streams as they are, and the pages with the new tokens' keys written."""
        s = self.shape
        seen, weights = self.mixer.read(x)
        both = self.both(seen).reshape(-1, s.heads + 1, s.dim)
        queries, keys = rotation(self.query_norm(both[:, :-1])), both[:, -1:]
        if s.placed:
            keys = with_places(keys, positions)
        blocks = WholeBlocks(s.size, s.most, self._pooled)
        chosen, pages = choose_whole_blocks(batch, pages, queries, keys, blocks)
        return x, MadeFor(chosen, seen, weights), pages

    def _pooled(self, keys: jax.Array, first: jax.Array) -> jax.Array:
        """As `WholeBlocks.pooled`: the mean, normed, and rotated as the first token of a block."""
        s, (rows, count) = self.shape, keys.shape[:2]
        normed = self.key_norm(sum_in_order(keys[..., : s.dim], axis=2) / s.size)
        at = jnp.broadcast_to(first[None], (rows, count)).reshape(-1)
        if s.placed:
            at = places_of(keys[:, :, 0, s.dim :].reshape(rows * count, -1))
        return s.rope.at(at)(normed.reshape(-1, 1, s.dim)).reshape(rows, count, s.dim)


class AttendingLayer(nnx.Module):
    """A layer that attends to the blocks which the `BlockChooser` before it chose."""

    def __init__(self, attention: BlockAttention, ffw: StreamsFfw) -> None:
        self.attention, self.ffw = attention, ffw

    def __call__(
        self,
        x: jax.Array,  # f32[T, N D]
        tokens: jax.Array,
        positions: jax.Array,
        before: MadeFor,
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, None, LayerPages]:
        mixed, pages = self.attention.of_chosen(before.seen, before.chosen, rotation, pages, batch)
        return self.ffw(added(x, mixed, before.weights)), None, pages


class LastMixture(nnx.Module):
    """Mixes the streams of a row for the head."""

    def __init__(self, mixer: StreamMixer, stream: int) -> None:
        self.mixer, self.stream = mixer, stream

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps rows f32[T, N D] or f32[T, N D + 1] to f32[T, D]."""
        return self.mixer(x[:, : self.stream])


class StreamsDecoder(Decoder):
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
    streams, ngrams = keys.whole("hc_count", least=2), bool(build.ngrams)
    stream = streams * shape.embed

    def decoder(**parts: Any) -> StreamsDecoder:
        image = keys.whole("image_token_id", _IMAGES.tokens[0], least=0)
        return StreamsDecoder(streams=streams, stream=stream, recalls=ngrams, image=image, **parts)

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
        media=_without_videos(media) if ngrams else media,
        unused=("mtp.",),
    )


class _Layers:
    """Builds the layers of a checkpoint. Raises CheckpointError."""

    def __init__(
        self, keys: ConfigKeys, rope: Rope, attends: Sequence[bool], *, placed: bool
    ) -> None:
        self.keys, self.attends = keys, attends
        # Each layer's number in the checkpoint, and whether it is the part that chooses
        self.parts = [
            (at, part) for at, its in enumerate(attends) for part in (True, False)[not its :]
        ]
        self.chooser = _chooser_shape(keys, rope, placed=placed)
        self.ngrams = _ngram_shapes(keys, attends)
        self.delta, self.shape = delta_shape(keys), attention_shape(keys)
        together = not keys.flag("experts_apart")
        self.ffw = routed_ffw(keys, shared=shared_ffw(keys), together=together)
        self.opens = _OPENS[keys.only("output_gate_type", *_gates(keys))]

    def layer(self, index: int, form: WeightForm) -> nnx.Module:
        of, chooses = self.parts[index]
        name = f"model.layers.{of}"
        if chooses:
            mixer = StreamMixer(self.keys, f"{name}.attn_hyper_connection", form, writes=True)
            return BlockChooser(self.chooser, mixer, f"{name}.self_attn.indexer", form)
        mixer = StreamMixer(self.keys, f"{name}.mlp_hyper_connection", form, writes=True)
        ffw = StreamsFfw(mixer, self.ffw(name, form))
        if self.attends[of]:
            attention = gated_attention(self.keys, name, self.shape, form, BlockAttention)
            assert isinstance(attention, BlockAttention)
            return AttendingLayer(attention, ffw)
        mixer = StreamMixer(self.keys, f"{name}.attn_hyper_connection", form, writes=True)
        sources = delta_sources(self.delta, f"{name}.linear_attn")
        delta = GatedDeltaNet(self.delta, sources, form, opens=self.opens)
        return DeltaLayer(self._ngrams(of, name, form), mixer, delta, ffw)

    def last(self, name: str) -> LastMixture:
        """Return what stands in the place of the last norm, like norms in float32."""
        form = WeightForm(dtype=jnp.float32)
        mixer = StreamMixer(self.keys, "model.hyper_connection_mixer", form, writes=False)
        return LastMixture(mixer, mixer.streams * self.shape.embed)

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


def _attending(keys: ConfigKeys) -> list[bool]:
    found = kinds_of_layers(keys, _KINDS)
    if found is not None:
        return found
    every = keys.whole("full_attention_interval", 4)
    return [(index + 1) % every == 0 for index in range(keys.whole("num_hidden_layers"))]


def _gates(keys: ConfigKeys) -> tuple[str, ...]:
    """Names of gates, first the one that counts if the config has none."""
    usual = keys.get("hidden_act", "silu")
    if usual not in _OPENS:
        raise CheckpointError(
            f"config.json has hidden_act = {usual!r}; the qwen4_exp family supports "
            f"{' and '.join(_OPENS)}"
        )
    return (usual, *_OPENS)


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
