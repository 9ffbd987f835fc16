"""Mistral Large 4: chosen tokens, latents that layers lend to others, and learnt positions.

Source: Mistral AI 2026, "Mistral Large 4"; config keys are those of Hugging Face's
`MistralLarge4ForConditionalGeneration`, whose part that sees is `media/pixtral_vision_encoder`.
Names are Mistral's own in files, and made the usual ones by `checkpoints/text_part`. Layers that
draft (`mtp_dspark`) are skipped: the reference computes none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.chosen import Choosing, Chosen, Lent, attend_to_chosen
from model_server.kernels.media_vectors import MediaVectors
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import CacheShape, HeadShape, LayerPages
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.indexed.deepseek_v32 import choosing_cache, indexer_of
from model_server.models.families.indexed.glm_moe_dsa import SHARING, choosers_of, choosing_layers
from model_server.models.families.indexed.indexed_attention import (
    IndexedLatentAttention,
    Indexer,
    IndexerShape,
)
from model_server.models.families.latent_recipe import (
    LATENT,
    LATENT_OFF,
    latent_recipe,
    latent_shape,
)
from model_server.models.families.sigmoid_experts import ROUTED, RoutedNames, routed_ffw
from model_server.models.known_keys import KnownKeys, all_in, one_of
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.latent_attention import LatentShape
from model_server.models.layers.layers import LayerNorm, run_layer, sum_and_norm
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rope, Rotary, rope_of
from model_server.models.layers.routing import GroupedSoftmaxChoice, checked_count
from model_server.models.media.media_recipe import encoders
from model_server.models.media.pixtral_vision_encoder import MISTRAL3_KEYS, mistral3_vision
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.sharding import split_heads
from model_server.models.weights.stage import Stage
from model_server.models.weights.weight import WeightForm, weight
from sax.errors import CheckpointError


class HeadGrowth(nnx.Module):
    """Scales each head's queries by a line over the logarithm of their position.

    Source: Nakanishi 2025, "Scalable-Softmax" (arXiv:2501.19399).
    """

    def __init__(self, heads: int, axis: str | None, prefix: str) -> None:
        names = f"{prefix}.softmax_scaling"
        self.slope = weight((heads,), (axis,), (f"{names}.scale",), dtype=jnp.float32, spread=0.0)
        self.start = weight((heads,), (axis,), (f"{names}.bias",), dtype=jnp.float32)

    def __call__(self, queries: jax.Array, rotation: Rotary) -> jax.Array:
        """Maps f32[T, H, Q]."""
        assert rotation.query_scale is not None, "it holds the logarithms"
        line = self.slope[...][None, :, None] * rotation.query_scale
        return queries * (line + self.start[...][None, :, None])


class GrowingIndexer(Indexer):
    """An indexer whose queries are made of the normed residual stream."""

    def __init__(
        self, shape: IndexerShape, embed: int, query_latent: int, prefix: str, form: WeightForm
    ) -> None:
        super().__init__(shape, embed, query_latent, prefix, form)
        norm = f"{prefix}.q_input_norm"
        self.before_queries = LayerNorm(
            embed, (f"{norm}.weight",), (f"{norm}.bias",), epsilon=shape.epsilon
        )
        self.growth = HeadGrowth(shape.heads, None, prefix)

    def choosing(self, x: jax.Array, narrow: jax.Array, rotation: Rotary) -> Choosing:
        made = super().choosing(x, self.before_queries(narrow), rotation)
        return made._replace(queries=self.growth(made.queries, rotation))


class SharedLatentAttention(IndexedLatentAttention):
    """Attention to chosen tokens, whose latents may be those of an earlier layer."""

    def __init__(
        self, indexer: IndexerShape, shape: LatentShape, prefix: str, form: WeightForm, **parts: Any
    ) -> None:
        super().__init__(indexer, shape, prefix, form, **parts, indexer_kind=GrowingIndexer)
        axis = split_heads(shape.heads, shape.heads, form.layout.shards("heads")).axis
        self.growth = HeadGrowth(shape.heads, axis, prefix)

    def grown(self, queries: jax.Array, rotation: Rotary | None) -> jax.Array:
        assert rotation is not None, "it holds the positions"
        return self.growth(queries, rotation)

    def attend_lent(
        self,
        x: jax.Array,  # f32[T, D]
        before: Chosen | None,  # by the last layer with an indexer
        lent: Lent | None,  # None: it makes its own
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, Chosen, Lent, LayerPages]:
        """Returns f32[T, D], what was chosen and attended to, and the pages written."""
        s, made, choosing = self.shape, self.head_inputs(x), before
        new = [] if self.borrows else [self.latent_keys(x, rotation)]
        if self.chooses:
            choosing = self.indexer.choosing(x, made.narrow, rotation)
            new.append(self.indexer.keys(x, rotation))
        assert choosing is not None, "the first layer has an indexer"
        keys = jnp.concatenate(new, axis=-1) if new else None
        queries = self.latent_queries(made, rotation)
        mixed, pages, chosen = attend_to_chosen(
            batch, pages, queries, keys, choosing, most=self.most, scale=s.scale, lent=lent
        )
        if lent is None:
            assert keys is not None, "it makes its own"
            lent = Lent(keys, pages)
        return self.of_latents(mixed[..., : s.latent], made), chosen, lent, pages


class SharedLatentLayer(PreNormLayer):
    """A pre-norm layer that takes and passes on what is chosen, and what is lent."""

    attention: SharedLatentAttention

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        before: Chosen | None,
        lent: Lent | None,
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, Chosen, Lent, LayerPages]:
        """As `SharedLatentAttention.attend_lent`."""
        normed = self.before_attention(x)
        mixed, chosen, lent, pages = self.attention.attend_lent(
            normed, before, lent, rotation, pages, batch
        )
        x, seen = sum_and_norm(self.before_ffw, x, mixed)
        return x + self.ffw(seen), chosen, lent, pages


class SharedLatentDecoder(Decoder):
    """A decoder of such layers, whose positions turn at learnt speeds.

    The first layer of a pipeline stage has an indexer and latents of its own (see `Recipe`).
    """

    def __init__(
        self,
        *,
        rope: Rope,
        turns: Sequence[bool],  # of each layer: whether it rotates
        lenders: Sequence[int | None],  # of each layer
        **parts: Any,
    ) -> None:
        super().__init__(**parts)
        self.rope, self.turns, self.lenders, self.first = rope, tuple(turns), tuple(lenders), 0
        name = "model.rotary_emb.alpha"
        self.alpha = weight(
            (len(rope.frequencies),), (None,), (name,), dtype=jnp.float32, spread=0.0
        )

    def rotations(self, positions: jax.Array) -> tuple[Rotary, Rotary]:
        """Return those of layers that do not rotate, and that do, with log(1 + i32[T])."""
        logs = jnp.log((positions + 1).astype(jnp.float32))[:, None, None]
        speeds = jnp.asarray(self.rope.frequencies, jnp.float32) * jnp.exp(self.alpha[...])
        angles = positions.astype(jnp.float32)[:, None] * speeds[None]
        turned = replace(self.rope.turned(angles, positions), query_scale=logs)
        return replace(turned, cos=turned.cos[..., :0], sin=turned.sin[..., :0]), turned

    def run(
        self,
        x: jax.Array,
        positions: jax.Array,
        pages: Sequence[LayerPages],
        batch: PagedBatch,
        media: MediaVectors | None = None,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]:
        """As `Decoder`; media only replace embeddings."""
        assert media is None or not media.levels, "its images are vectors among the embeddings"
        rotations = self.rotations(positions)
        x, chosen = batch.divided(x), None
        written: list[LayerPages] = []
        given: dict[int | None, Lent] = {}
        for index, (layer, held) in enumerate(zip(self.layers, pages, strict=True), self.first):
            rotation, lent = rotations[self.turns[index]], given.get(self.lenders[index])
            x, chosen, given[index], held = run_layer(layer, x, chosen, lent, rotation, held, batch)
            x = batch.divided(x)
            written.append(held)
        return x, tuple(written)

    def keep(self, stage: Stage) -> None:
        """As `Decoder`."""
        super().keep(stage)
        self.first = stage.first


KEYS = KnownKeys(
    "mistral_large4",
    (
        *LATENT,
        *ROUTED,
        *SHARING,
        *MISTRAL3_KEYS,
        "final_logit_softcapping",
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "kv_source_layers",
        "mlp_layer_types",
        "no_rope_layer_interval",
        "no_rope_layers",
    ),
    {
        **LATENT_OFF,
        "layer_types": all_in("indexed_attention"),
        "rope_interleave": one_of(True),
    },
)
_DEFAULTS = {
    "final_logit_softcapping": 30.0,
    "first_k_dense_replace": 1,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "max_position_embeddings": 1048576,
    "moe_intermediate_size": 6144,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "qk_nope_head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "attention_factor": 1.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 2048.0,
        "original_max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "rope_type": "yarn",
    },
}
_ALIASES = ("num_experts", "num_local_experts")  # as transformers takes them, too


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(_given(config), KEYS, _DEFAULTS)
    keys.only("q_lora_rank", None)
    indexer, chooses = indexer_of(keys, narrow=False), choosing_layers(keys)
    turns = _turns(keys)
    lenders = _lenders(keys, turns)
    shape, epsilon = latent_shape(keys), keys.number("rms_norm_eps")
    rope = rope_of(keys.all, shape.rotated_dim, interleaved=True)

    def attention(index: int, shape: LatentShape, prefix: str, form: WeightForm) -> nnx.Module:
        shape = replace(_turning(shape, turns[index]), epsilon=epsilon)
        parts = {"chooses": chooses[index], "borrows": lenders[index] is not None}
        return SharedLatentAttention(indexer, shape, prefix, form, **parts)

    borrowing = [index for index, lender in enumerate(lenders) if lender is not None]
    recipe = latent_recipe(
        keys,
        values,
        listed_sparse(keys),
        routed_ffw(keys, _choice(keys), names=RoutedNames(bias=None)),
        attentions=[partial(attention, index) for index in range(len(turns))],
        layer_kind=SharedLatentLayer,
        decoder_kind=partial(
            SharedLatentDecoder,
            rope=rope,
            turns=turns,
            lenders=lenders,
            logits_softcap=_softcap(keys),
        ),
        rope=rope,
        unused=("mtp_dspark.",),
    )
    cached = choosing_cache(keys, indexer, _kept(indexer, shape, turns, chooses, lenders))

    def cache(shards: int) -> CacheShape:
        if not borrowing:
            return cached(shards)
        return replace(cached(shards), plain=True, lenders=tuple(lenders))

    return replace(
        recipe,
        cache=cache,
        choosers=choosers_of(chooses),
        media=encoders(mistral3_vision(keys, recipe.embed, values, interleaved=True)),
        own_head=None,
    )


def _given(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the config without nulls, which mean defaults here, with one name for each key."""
    given = {key: value for key, value in (config or {}).items() if value is not None}
    for alias in _ALIASES:
        if alias in given:
            given["n_routed_experts"] = given.pop(alias)
    return given


def _turning(shape: LatentShape, turns: bool) -> LatentShape:
    """Return the shape of a layer: where nothing turns, heads are as large."""
    return shape if turns else replace(shape, plain_dim=shape.query_dim, rotated_dim=0)


def _kept(
    indexer: IndexerShape,
    shape: LatentShape,
    turns: Sequence[bool],
    chooses: Sequence[bool],
    lenders: Sequence[int | None],
) -> tuple[HeadShape | None, ...]:
    """Return what layers keep of a token that is not what most do; all of it lies in one head."""
    own = [
        0 if lender is not None else shape.latent + shape.rotated_dim * turn
        for turn, lender in zip(turns, lenders, strict=True)
    ]
    sizes = [size + indexer.dim * does for size, does in zip(own, chooses, strict=True)]
    usual = shape.latent + shape.rotated_dim + indexer.dim
    return tuple(HeadShape(1, size, 0) if size not in (0, usual) else None for size in sizes)


def _turns(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: whether it rotates queries and keys. Raises CheckpointError."""
    layers, given = keys.whole("num_hidden_layers"), keys.get("no_rope_layers")
    if given is None:
        every = keys.whole("no_rope_layer_interval", 4)
        return [(index + 1) % every != 0 for index in range(layers)]
    if not isinstance(given, list) or len(given) < layers or any(n not in (0, 1) for n in given):
        raise CheckpointError(
            f"config.json has no_rope_layers = {given!r}; the mistral_large4 family needs a 0 or a "
            f"1 for each of its {layers} layers"
        )
    return [bool(turn) for turn in given[:layers]]


def _lenders(keys: ConfigKeys, turns: Sequence[bool]) -> list[int | None]:
    """Return the layer to whose latents each attends, None: to its own. Raises CheckpointError.

    The published code hands on what the last lender of a kind (rotated or not) made, so others
    cannot be named.
    """
    given, layers = keys.get("kv_source_layers"), len(turns)
    if given is None:
        return [None] * layers
    if not isinstance(given, list) or len(given) != layers:
        raise CheckpointError(
            f"config.json has kv_source_layers = {given!r}; the mistral_large4 family needs one "
            f"for each of its {layers} layers"
        )
    last: dict[bool, int] = {}
    for index, source in enumerate(given):
        if source == index:
            last |= {turns[index]: index} if index in given[index + 1 :] else {}
        elif type(source) is not int or source != last.get(turns[index]):
            raise CheckpointError(
                f"config.json has {source!r} in kv_source_layers for layer {index}; the "
                "mistral_large4 family supports its own number, and that of the last layer before "
                "it that lends and rotates as it does"
            )
    return [None if source == index else source for index, source in enumerate(given)]


def _choice(keys: ConfigKeys) -> GroupedSoftmaxChoice:
    """Read how experts are chosen. Raises CheckpointError."""
    rest = {"n_group": 1, "norm_topk_prob": True, "scoring_func": "softmax", "topk_group": 1}
    for key, value in rest.items():
        keys.only(key, value)
    return GroupedSoftmaxChoice(
        checked_count(keys, keys.whole("n_routed_experts")),
        1,
        1,
        keys.number("routed_scaling_factor", 1.0),
        normalised=True,
    )


def _softcap(keys: ConfigKeys) -> float:
    """Raises CheckpointError."""
    if (found := keys.number("final_logit_softcapping")) <= 0:
        raise CheckpointError(
            f"config.json has final_logit_softcapping = {found}; the mistral_large4 family "
            "supports numbers above 0"
        )
    return found


FAMILY = Family(
    "mistral_large4",
    ("mistral_large4", "mistral_large4_text"),
    "Mistral Large 4",
    configure,
    own_types_only=True,
)
