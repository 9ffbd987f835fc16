"""Llama 4: chunks of attention, layers without positions, experts of weighted inputs.

The vision encoder, if a checkpoint has one, is `media/llama4`.
Source: Meta 2025, "The Llama 4 herd"; names and config keys are those of Hugging Face's
`Llama4ForCausalLM` and `Llama4ForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildFfw, decoder_recipe, norm_of
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.activations import activation_of
from model_server.models.layers.attention import Attention, AttentionSources
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import UnitNorm
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import QueryGrowth, Rope, rope_of
from model_server.models.layers.routing import Router, SigmoidChoice, checked_count
from model_server.models.media import llama4_vision_encoder
from model_server.models.media.media_recipe import encoders
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.source import Portion, Tensor, Transposed
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# Llama 4's kinds of layers: most rotate and see a chunk, the others see everything unrotated.

_CHUNKED, _FULL = "chunked_attention", "full_attention"


class LayerKind(NamedTuple):
    rotates: bool
    chunk: int | None  # tokens that see each other; None: all
    sparse: bool  # has experts


def layer_kinds(keys: ConfigKeys) -> list[LayerKind]:
    """Return one per layer. Raises CheckpointError for lists that do not fit the layers."""
    layers = range(keys.whole("num_hidden_layers"))
    size = keys.whole_or_none("attention_chunk_size")
    interval = keys.whole("no_rope_layer_interval")
    rotates = keys.get("no_rope_layers") or [int((i + 1) % interval != 0) for i in layers]
    _check(keys, "no_rope_layers", rotates, (0, 1))
    chunks = keys.get("layer_types") or [_CHUNKED if turns else _FULL for turns in rotates]
    _check(keys, "layer_types", chunks, (_CHUNKED, _FULL))
    step = keys.whole("interleave_moe_layer_step")
    sparse = keys.get("moe_layers")
    sparse = list(layers)[step - 1 :: step] if sparse is None else sparse
    if not isinstance(sparse, list) or any(type(index) is not int for index in sparse):
        raise CheckpointError(f"config.json has moe_layers = {sparse!r}; give layer indices")
    return [
        LayerKind(rotates[i] == 1, size if chunks[i] == _CHUNKED else None, i in sparse)
        for i in layers
    ]


def _check(keys: ConfigKeys, key: str, given: Any, allowed: tuple[Any, ...]) -> None:
    layers = keys.whole("num_hidden_layers")
    if not isinstance(given, list) or len(given) < layers or not set(given) <= set(allowed):
        raise CheckpointError(
            f"config.json has {key} = {given!r}; the {keys.family} family needs one of "
            f"{' and '.join(map(str, allowed))} for each of {layers} layers"
        )


def ropes_of(keys: ConfigKeys, kinds: Sequence[LayerKind], head_dim: int) -> list[Rope | None]:
    """One per layer; layers that do not rotate may sharpen the attention of late queries."""
    given = keys.all
    if not given.get("rope_parameters") and not given.get("rope_theta"):
        given = given | {"rope_theta": 500000.0}
    rope = rope_of(given, head_dim, interleaved=True)
    return [rope if kind.rotates else _unrotated(keys) for kind in kinds]


def _unrotated(keys: ConfigKeys) -> Rope | None:
    # True, or a number that says no more.
    if not keys.get("attn_temperature_tuning", True):
        return None
    growth = QueryGrowth(keys.number("attn_scale"), keys.whole("floor_scale"), ahead=1)
    return Rope(frequencies=(), query_growth=growth)


KEYS = KnownKeys(
    "llama4",
    (
        *DECODER,
        "attention_bias",
        "attention_chunk_size",
        "attn_scale",
        "attn_temperature_tuning",
        "floor_scale",
        "interleave_moe_layer_step",
        "intermediate_size_mlp",
        "layer_types",
        "moe_layers",
        "no_rope_layer_interval",
        "no_rope_layers",
        "num_experts_per_tok",
        "num_local_experts",
        "use_qk_norm",
        *llama4_vision_encoder.KEYS,
    ),
    # Notes of a tool, and tokens around those of an image.
    {**DECODER_OFF, **ignored("for_llm_compressor", "boi_token_index", "eoi_token_index")},
)
_DEFAULTS = {
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "floor_scale": 8192,
    "head_dim": 128,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 131072,
    "no_rope_layer_interval": 4,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "rms_norm_eps": 1e-5,
    "use_qk_norm": True,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, biased = attention_shape(keys), keys.flag("attention_bias")
    kinds, epsilon = layer_kinds(keys), keys.number("rms_norm_eps")
    dense, routed = _dense_ffw(keys, "intermediate_size_mlp"), _routed_ffw(keys)

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix, kind = f"model.layers.{index}", kinds[index]
        sources = AttentionSources.hugging_face(
            f"{prefix}.self_attn", biased=biased, out_biased=biased
        )
        # They may come before the rotation, which keeps lengths.
        normed = keys.flag("use_qk_norm") and kind.rotates
        q_norm, k_norm = (UnitNorm(epsilon) if normed else None for _ in "qk")
        own = replace(shape, chunk=kind.chunk)
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            Attention(own, sources, form, q_norm=q_norm, k_norm=k_norm),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            (routed if kind.sparse else dense)(f"{prefix}.feed_forward", form),
        )

    recipe = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=ropes_of(keys, kinds, shape.head_dim),
        layer=layer,
        windows=[kind.chunk for kind in kinds],
    )
    return replace(recipe, media=encoders(llama4_vision_encoder.llama4_vision(keys, recipe.embed)))


def _dense_ffw(keys: ConfigKeys, width: str) -> Any:
    embed, ffw = keys.whole("hidden_size"), keys.whole(width)
    activation = activation_of(keys.get("hidden_act", "silu"))

    def build(name: str, form: WeightForm) -> GatedFeedForward:
        return GatedFeedForward.hugging_face(embed, ffw, name, activation=activation, form=form)

    return build


def _routed_ffw(keys: ConfigKeys) -> BuildFfw:
    embed, ffw = keys.whole("hidden_size"), keys.whole("intermediate_size")
    experts = keys.whole("num_local_experts")
    choice = SigmoidChoice(checked_count(keys, experts))
    shared = _dense_ffw(keys, "intermediate_size")
    activation = activation_of(keys.get("hidden_act", "silu"))

    def build(name: str, form: WeightForm) -> RoutedFeedForward:
        both = Transposed(Tensor(f"{name}.experts.gate_up_proj"))
        sources = ExpertSources(
            count=experts,
            gate=Portion(both, 1, 0, ffw, of=2 * ffw),
            up=Portion(both, 1, ffw, 2 * ffw, of=2 * ffw),
            down=Transposed(Tensor(f"{name}.experts.down_proj")),
        )
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{name}.router.weight",)),
            Experts(embed, ffw, sources, activation=activation, form=form, weigh_inputs=True),
            shared(f"{name}.shared_expert", form),
        )

    return build


FAMILY = Family("llama4", ("llama4_text", "llama4"), "Llama 4", configure, own_types_only=True)
