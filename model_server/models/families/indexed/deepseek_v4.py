"""DeepSeek-V4: a window beside compressed entries, mixed residual streams, experts by token.

To the engine a layer with entries is two, one of which caches them. Tensors are read by the names
of the published files and of Hugging Face's `DeepseekV4ForCausalLM` (checkpoints/text_part).
Source: DeepSeek-AI 2026, "DeepSeek-V4". Layers that draft are skipped: the reference skips them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import CacheShape, HeadShape, LayerPages
from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import BuildFfw, decoder_recipe, norm_of
from model_server.models.families.indexed.hy_v4 import (
    MixingConnection,
    StreamsNorm,
    StreamWeights,
    bounded_gate,
    stream_weights,
)
from model_server.models.families.ropes import rotated_part
from model_server.models.families.sigmoid_experts import RoutedNames, routed_ffw
from model_server.models.known_keys import DECODER, KnownKeys, ignored, one_of
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.compressed_attention import (
    CompressedAttention,
    CompressedShape,
    EntryShape,
)
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.experts import RoutedFeedForward
from model_server.models.layers.layers import run_layer
from model_server.models.layers.lending import FinalStream
from model_server.models.layers.rope import Rope, Rotary, rope_of
from model_server.models.layers.routing import SCORINGS, HashedRouter, ScoredChoice, checked_count
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.sharding import split_heads
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError


class HashedFeedForward(RoutedFeedForward):
    """Experts by the token of the text, beside those that every token uses."""

    router: HashedRouter

    def of_tokens(self, x: jax.Array, tokens: jax.Array) -> jax.Array:
        """Maps f32[T, D] of tokens i32[T] to f32[T, D]."""
        made = self.experts(x, self.router.of_tokens(x, tokens))
        return made if self.shared is None else made + self.shared(x)


class EntryPages(nnx.Module):
    """Stands for the pages with entries of the layer behind it."""


class CompressedLayer(nnx.Module):
    """A layer over several residual streams, whose attention has near pages and entries."""

    def __init__(
        self,
        before_attention: nnx.Module,
        attention: CompressedAttention,
        before_ffw: nnx.Module,
        ffw: nnx.Module,
        streams: Sequence[MixingConnection],  # of attention and feed-forward
    ) -> None:
        self.before_attention = before_attention
        self.attention = attention
        self.before_ffw = before_ffw
        self.ffw = ffw
        self.of_attention, self.of_ffw = streams

    def __call__(
        self,
        x: jax.Array,  # f32[T, N D]
        tokens: jax.Array,  # i32[T]
        rotation: Rotary,
        near: LayerPages,
        lasting: LayerPages | None,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages, LayerPages | None]:
        seen, weights = self.of_attention.read(x)
        made, near, lasting = self.attention(
            self.before_attention(seen), rotation, near, lasting, batch
        )
        x = self.of_attention.added(x, made, weights)
        seen, weights = self.of_ffw.read(x)
        seen, ffw = self.before_ffw(seen), self.ffw
        made = ffw.of_tokens(seen, tokens) if isinstance(ffw, HashedFeedForward) else ffw(seen)
        return self.of_ffw.added(x, made, weights), near, lasting


class CompressedDecoder(Decoder):
    """A decoder of such layers. A row is the streams, then the number of the token."""

    def __init__(self, *, streams: int, **parts: Any) -> None:
        super().__init__(**parts)
        self.streams = streams

    def embed(self, tokens: jax.Array, positions: jax.Array, media: Any = None) -> jax.Array:
        """Returns f32[T, N D + 1]: all streams begin alike. It takes no media."""
        streams = jnp.tile(super().embed(tokens, positions, media), (1, self.streams))
        return jnp.concatenate([streams, tokens[:, None].astype(streams.dtype)], axis=1)

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
        streams, behind = x[:, :-1], x[:, -1:]
        tokens = behind[:, 0].astype(jnp.int32)
        written = list(pages)
        for index, (layer, rope) in enumerate(zip(self.layers, self.ropes, strict=True)):
            if isinstance(layer, EntryPages):
                continue
            of = index - 1 if index and isinstance(self.layers[index - 1], EntryPages) else None
            lasting = None if of is None else written[of]
            streams, written[index], lasting = run_layer(
                layer, streams, tokens, rotations[rope], written[index], lasting, batch
            )
            if of is not None:
                written[of] = lasting
        return jnp.concatenate([streams, behind], axis=1), tuple(written)


_NEAR, _CHOSEN, _ALL = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_RATIOS = {0: _NEAR, 4: _CHOSEN, 128: _ALL}  # in published files, by layer
_RATES = {_CHOSEN: 4, _ALL: 128}
_OLD_RATES = {"compress_rate_csa": _CHOSEN, "compress_rate_hca": _ALL}
KEYS = KnownKeys(
    "deepseek_v4",
    (
        *(key for key in DECODER if key not in ("intermediate_size", "num_key_value_heads")),
        *_OLD_RATES,
        "compress_rates",
        "compress_ratios",
        "compress_rope_theta",
        "hc_eps",
        "hc_mult",
        "hc_sinkhorn_iters",
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "layer_types",
        "mlp_layer_types",
        "moe_intermediate_size",
        "moe_layer_freq",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "num_hash_layers",
        "o_groups",
        "o_lora_rank",
        "partial_rotary_factor",
        "q_lora_rank",
        "qk_rope_head_dim",
        "routed_scaling_factor",
        "scoring_func",
        "sliding_window",
        "swiglu_limit",
    ),
    {
        **ignored("expert_dtype"),  # checked where the weights are read
        # All heads share one vector, whatever the second says.
        **ignored("num_nextn_predict_layers", "num_key_value_heads"),
        "attention_bias": one_of(False),
        "mlp_bias": one_of(False),
        "norm_topk_prob": one_of(True),
        "topk_method": one_of("noaux_tc"),
    },
)
_DEFAULTS = {
    "compress_rope_theta": 160000.0,
    "hc_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 512,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "max_position_embeddings": 1048576,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 128,
    "swiglu_limit": 10.0,
}
_ALIASES = {"intermediate_size": "moe_intermediate_size", "num_local_experts": "n_routed_experts"}
_EXPERTS = RoutedNames(parts=("w1", "w3", "w2"))


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = {_ALIASES.get(key, key): value for key, value in (config or {}).items()}
    keys = ConfigKeys(given, KEYS, _DEFAULTS)
    shapes, kinds = _shapes(keys), _kinds(keys)
    near, far = _ropes(keys)
    by_token, (routed, hashed) = _hashed(keys), _ffws(keys)
    # Of each layer of the engine: the layer of the model, and whether it is where entries lie.
    parts = [
        (at, entries)
        for at, kind in enumerate(kinds)
        for entries in ((False,) if kind == _NEAR else (True, False))
    ]
    streams, embed = keys.whole("hc_mult"), keys.whole("hidden_size")
    shares, rounds = (1, 1, streams), keys.whole("hc_sinkhorn_iters")

    def layer(index: int, form: WeightForm) -> nnx.Module:
        at, entries = parts[index]
        name, rope = f"model.layers.{at}", near if kinds[at] == _NEAR else far
        if entries:
            return EntryPages()
        return CompressedLayer(
            norm_of(keys, f"{name}.input_layernorm"),
            CompressedAttention(shapes[kinds[at]], f"{name}.self_attn", form, rope=rope),
            norm_of(keys, f"{name}.post_attention_layernorm"),
            (hashed if by_token[at] else routed)(name, form),
            [
                stream_weights(MixingConnection, keys, shares, f"{name}.{part}", rounds=rounds)
                for part in ("attn_hc", "ffn_hc")
            ],
        )

    recipe = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=_cached(keys),
        ropes=[near if kinds[at] == _NEAR else far for at, _ in parts],
        layer=layer,
        norm=lambda name: FinalStream(
            StreamsNorm(
                stream_weights(StreamWeights, keys, (1,), "model.hc_head.hc"), norm_of(keys, name)
            ),
            streams * embed,
        ),
        windows=[None if entries else shapes[kinds[at]].reach for at, entries in parts],
        kind=partial(CompressedDecoder, streams=streams),
    )
    held = [
        (shapes[kinds[at]].lasting if own else None, shapes[kinds[at]].near) for at, own in parts
    ]
    return replace(
        recipe,
        cache=partial(_cache, keys.whole("num_attention_heads"), [a or b for a, b in held]),
        choosers=tuple(
            None if entries or kinds[at] == _NEAR else index - 1
            for index, (at, entries) in enumerate(parts)
        ),
        carried=streams * embed + 1,
        unused=("mtp.", "model.mtp."),
    )


def _cache(heads: int, each: Sequence[HeadShape], shards: int) -> CacheShape:
    """Say of every layer what it caches."""
    return CacheShape(
        layers=len(each),
        kv_heads=1,
        key_dim=each[0].key_dim,
        value_dim=0,
        others=tuple(each),
        query_axis=split_heads(heads, heads, shards).axis,
        chosen=True,
        plain=True,
    )


def _cached(keys: ConfigKeys) -> AttentionShape:
    size = keys.whole("head_dim")
    return AttentionShape(
        embed=keys.whole("hidden_size"),
        heads=keys.whole("num_attention_heads"),
        kv_heads=1,
        head_dim=size,
        scale=size**-0.5,
    )


def _kinds(keys: ConfigKeys) -> list[str]:
    """Return the kind of attention of each layer. Raises CheckpointError."""
    layers, ratios = keys.whole("num_hidden_layers"), keys.get("compress_ratios")
    if found := kinds_of_layers(keys, {kind: kind for kind in _RATIOS.values()}):
        return found
    if ratios is None:  # as transformers has it
        return [_ALL if at < 2 or at % 2 == 0 else _CHOSEN for at in range(layers)]
    whole = isinstance(ratios, list) and all(type(n) is int and n in _RATIOS for n in ratios)
    if not whole or len(ratios) < layers:
        raise CheckpointError(
            f"config.json has compress_ratios = {ratios!r}; the {keys.family} family needs one of "
            f"{', '.join(map(str, _RATIOS))} for each of {layers} layers"
        )
    return [_RATIOS[ratio] for ratio in ratios[:layers]]  # the rest is of layers that draft


def _hashed(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if the token of the text says its experts."""
    kinds = {"hash_moe": True, "moe": False}
    if found := kinds_of_layers(keys, kinds, "mlp_layer_types"):
        return found
    first = keys.whole("num_hash_layers", least=0)
    return [at < first for at in range(keys.whole("num_hidden_layers"))]


def _rates(keys: ConfigKeys) -> dict[str, int]:
    """Return the tokens of an entry, by kind. Raises CheckpointError."""
    given = keys.get("compress_rates", {})
    if not isinstance(given, Mapping) or given.keys() - _RATES.keys():
        raise CheckpointError(
            f"config.json has compress_rates = {given!r}; the {keys.family} family has them of "
            f"{' and '.join(_RATES)}"
        )
    old = {kind: keys.whole(key) for key, kind in _OLD_RATES.items() if keys.get(key) is not None}
    rates = {**_RATES, **given, **old}
    if any(type(rate) is not int or rate < 2 for rate in rates.values()):
        raise CheckpointError(
            f"config.json has compress_rates = {rates!r}; the {keys.family} family supports whole "
            "numbers of tokens from 2"
        )
    return rates


def _shapes(keys: ConfigKeys) -> dict[str, CompressedShape]:
    """Return the shape of attention by kind. Raises CheckpointError."""
    heads, groups, rates = keys.whole("num_attention_heads"), keys.whole("o_groups"), _rates(keys)
    size, rotated = keys.whole("index_head_dim"), _rotated(keys)
    found = heads * keys.whole("head_dim")
    if found % groups or size < rotated:
        raise CheckpointError(
            f"config.json has o_groups = {groups} and index_head_dim = {size}; the {keys.family} "
            f"family needs a divisor of the {found} numbers that heads find, and the {rotated} "
            "that rotate"
        )
    plain = CompressedShape(
        embed=keys.whole("hidden_size"),
        heads=heads,
        head_dim=keys.whole("head_dim"),
        query_latent=keys.whole("q_lora_rank"),
        groups=groups,
        group_latent=keys.whole("o_lora_rank"),
        window=keys.whole("sliding_window"),
        epsilon=keys.number("rms_norm_eps"),
        entries=None,
    )
    chosen = EntryShape(
        rate=rates[_CHOSEN],
        overlaps=True,
        heads=keys.whole("index_n_heads"),
        dim=size,
        most=keys.whole("index_topk"),
    )
    every = EntryShape(rate=rates[_ALL], overlaps=False)
    return {
        _NEAR: plain,
        _CHOSEN: replace(plain, entries=chosen),
        _ALL: replace(plain, entries=every),
    }


def _rotated(keys: ConfigKeys, share: Any = None) -> int:
    """Return the numbers of a head that rotate. Raises CheckpointError."""
    size = keys.whole("head_dim")
    share = keys.get("partial_rotary_factor") if share is None else share
    if share is None:
        share = keys.whole("qk_rope_head_dim", size // 8) / size
    return rotated_part(keys, size, share)


def _ropes(keys: ConfigKeys) -> tuple[Rope, Rope]:
    """Return the ropes of layers without entries and with them. Raises CheckpointError."""
    given = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has {given!r} where its rope scaling should be")
    near, far = given.get("main"), given.get("compress")
    if not (isinstance(near, Mapping) and isinstance(far, Mapping)):
        flat = {key: value for key, value in given.items() if key not in ("main", "compress")}
        near = {"rope_theta": keys.number("rope_theta")}
        far = {**flat, "rope_theta": keys.number("compress_rope_theta")}
        if far.get("rope_type", far.get("type")) == "yarn":  # cosines and sines as they are
            far.setdefault("attention_factor", 1.0)

    def made(settings: Mapping[str, Any]) -> Rope:
        settings = dict(settings)
        size = _rotated(keys, settings.pop("partial_rotary_factor", None))
        return rope_of(keys.all | {"rope_parameters": settings}, size, interleaved=True)

    return made(near), made(far)


def _ffws(keys: ConfigKeys) -> tuple[BuildFfw, BuildFfw]:
    """Return builders of experts that are scored, and of hashed ones. Raises CheckpointError."""
    keys.only("hidden_act", "silu")
    keys.only("n_shared_experts", 1)
    embed, experts, vocab = map(keys.whole, ("hidden_size", "n_routed_experts", "vocab_size"))
    scoring, scale = keys.only("scoring_func", *SCORINGS), keys.number("routed_scaling_factor")
    choice = ScoredChoice(checked_count(keys, experts), scoring, scale)
    routed = routed_ffw(keys, choice, names=_EXPERTS, gate=bounded_gate(keys))

    def hashed(name: str, form: WeightForm) -> nnx.Module:
        gate = f"{name}.mlp.gate"
        table = {"vocab": vocab, "table": (f"{gate}.tid2eid",)}
        router = HashedRouter(embed, experts, choice, (f"{gate}.weight",), **table)
        made: Any = routed(name, form)
        return HashedFeedForward(router, made.experts, made.shared)

    return routed, hashed


FAMILY = Family("deepseek_v4", ("deepseek_v4",), "DeepSeek-V4", configure, own_types_only=True)
