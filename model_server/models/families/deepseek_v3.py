"""DeepSeek-V3, R1 and Kimi K2: latent attention; some dense layers, then routed and shared experts.

Source: DeepSeek-AI 2024 (arXiv:2412.19437); names and config keys are those of Hugging Face's
`DeepseekV3ForCausalLM`. Multi-token-prediction layers after the last are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import (
    BuildFfw,
    embedding_of,
    gated_ffw,
    head_of,
    norm_of,
)
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.latent_attention import LatentAttention, LatentShape, latent_cache
from model_server.models.layers.layers import activation_of
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rope, rope_of, yarn_mscale
from model_server.models.layers.routing import Choice, GroupedSigmoidChoice, Router, checked_count
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

BuildLatent = Callable[[LatentShape, str, WeightForm], nnx.Module]
# Of its experts, which other families have as well.
ROUTED = (
    "first_k_dense_replace",
    "moe_intermediate_size",
    "moe_layer_freq",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "num_nextn_predict_layers",
    "routed_scaling_factor",
    "scoring_func",
    "topk_group",
    "topk_method",
)
LATENT = (
    *(key for key in DECODER if key not in ("head_dim", "num_key_value_heads")),
    "attention_bias",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
# All heads share one latent; head sizes are given part by part.
LATENT_OFF = {**DECODER_OFF, **ignored("head_dim", "num_key_value_heads", "qk_head_dim")}
KEYS = KnownKeys("deepseek_v3", (*LATENT, *ROUTED, "rope_interleave"), LATENT_OFF)
# Hugging Face's defaults.
_DEFAULTS = {
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "max_position_embeddings": 4096,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    return latent_recipe(keys, values, first_sparse(keys), routed_ffw(keys))


def first_sparse(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True for all but the first ones, which have no experts."""
    dense = keys.whole("first_k_dense_replace", 0, least=0)
    return [index >= dense for index in range(keys.whole("num_hidden_layers"))]


def latent_recipe(
    keys: ConfigKeys,
    values: Mapping[str, Any],
    sparse: Sequence[bool],
    routed: BuildFfw,
    *,
    attentions: Sequence[BuildLatent] = (),
    layer_kind: type[PreNormLayer] = PreNormLayer,
    decoder_kind: type[Decoder] = Decoder,
    rope: Rope | None = None,
    unused: tuple[str, ...] = (),
) -> Recipe:
    """Build a recipe over latent attention, with experts in some layers.

    sparse, attentions: of each layer; () of attentions: usual ones. rope: None: as config.json
    says. unused: more prefixes of tensors that are not read.
    """
    layers, shape, dense = len(sparse), latent_shape(keys), gated_ffw(keys)
    rope = rope or rope_of(keys.all, shape.rotated_dim, interleaved=_interleaved(keys))

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        attention = attentions[index] if attentions else LatentAttention
        return layer_kind(
            norm_of(keys, f"{prefix}.input_layernorm"),
            attention(shape, f"{prefix}.self_attn", form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            (routed if sparse[index] else dense)(prefix, form),
        )

    def build(form: WeightForm) -> Decoder:
        return decoder_kind(
            embedding=embedding_of(keys, form),
            layers=[layer(index, form) for index in range(layers)],
            final_norm=norm_of(keys, "model.norm"),
            head=head_of(keys, form),
            ropes=[rope] * layers,
        )

    return Recipe(
        build=build,
        cache=latent_cache(
            layers=layers, heads=shape.heads, latent=shape.latent, rotated=shape.rotated_dim
        ),
        embed=shape.embed,
        vocab=keys.whole("vocab_size"),
        unused=(*spare_layers(keys, layers), *unused),
        short_context=rope.short_context,
        **serving(values, keys.whole("max_position_embeddings")),
    )


def _interleaved(keys: ConfigKeys) -> bool:
    named = "rope_interleave" in keys.known.computed
    return keys.flag("rope_interleave", True) if named else True


def latent_shape(keys: ConfigKeys) -> LatentShape:
    plain, rotated = keys.whole("qk_nope_head_dim", 128), keys.whole("qk_rope_head_dim", 64)
    return LatentShape(
        embed=keys.whole("hidden_size"),
        heads=keys.whole("num_attention_heads"),
        plain_dim=plain,
        rotated_dim=rotated,
        value_dim=keys.whole("v_head_dim", 128),
        latent=keys.whole("kv_lora_rank", 512),
        query_latent=keys.whole_or_none("q_lora_rank"),
        scale=(plain + rotated) ** -0.5 * _sharpened(keys),
        biased=keys.flag("attention_bias"),
    )


def _sharpened(keys: ConfigKeys) -> float:
    """Factor that YaRN applies to the score scale (arXiv:2309.00071, section 3.4)."""
    given = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    if given.get("rope_type", given.get("type", "default")) == "default":
        return 1.0
    all_dims = given.get("mscale_all_dim")
    return yarn_mscale(float(given["factor"]), float(all_dims)) ** 2 if all_dims else 1.0


def routed_ffw(
    keys: ConfigKeys,
    choice: Choice | None = None,
    *,
    bias: str | None = "gate.e_score_correction_bias",
    together: bool = False,
) -> BuildFfw:
    """Builder of a layer's experts, beside those that every token uses.

    choice: None: by sigmoids, as config.json says. bias: of the choice, below the experts' name.
    together: two tensors hold the matrices of all experts.
    """
    embed, ffw = keys.whole("hidden_size"), keys.whole("moe_intermediate_size", 2048)
    experts, shared = keys.whole("n_routed_experts"), keys.whole("n_shared_experts", 0, least=0)
    chosen = sigmoid_choice(keys, experts) if choice is None else choice
    activation = activation_of(keys.get("hidden_act", "silu"))
    keys.only("moe_layer_freq", 1)

    def build(prefix: str, form: WeightForm) -> RoutedFeedForward:
        name = f"{prefix}.mlp"
        sources = _sources(f"{name}.experts", experts, ffw, together)
        always = None
        if shared:  # several are stored, and computed, as one wider feed-forward
            always = GatedFeedForward.hugging_face(
                embed, shared * ffw, f"{name}.shared_experts", activation=activation, form=form
            )
        offset = None if bias is None else (f"{name}.{bias}",)
        return RoutedFeedForward(
            Router(embed, experts, chosen, (f"{name}.gate.weight",), bias=offset),
            Experts(embed, ffw, sources, activation=activation, form=form),
            always,
        )

    return build


def _sources(name: str, experts: int, ffw: int, together: bool) -> ExpertSources:
    if together:
        return ExpertSources.together(
            experts, ffw, gate_up=f"{name}.gate_up_proj", down=f"{name}.down_proj"
        )
    return ExpertSources.hugging_face(
        name, experts, gate="gate_proj", up="up_proj", down="down_proj"
    )


def sigmoid_choice(keys: ConfigKeys, experts: int) -> GroupedSigmoidChoice:
    """Read how experts are chosen. Raises CheckpointError."""
    keys.only("scoring_func", "sigmoid")
    keys.only("topk_method", "noaux_tc")
    groups, kept = keys.whole("n_group", 1), keys.whole("topk_group", 1)
    if experts % groups or kept > groups or (kept < groups and experts // groups < 2):
        raise CheckpointError(
            f"config.json has n_group = {groups} and topk_group = {kept} for {experts} experts; "
            "groups must be of equal size with at least two experts, and topk_group at most n_group"
        )
    return GroupedSigmoidChoice(
        count=checked_count(keys, experts // groups * kept),
        groups=groups,
        kept=kept,
        normalised=keys.flag("norm_topk_prob", True),
        scale=keys.number("routed_scaling_factor", 2.5),
    )


def spare_layers(keys: ConfigKeys, layers: int) -> tuple[str, ...]:
    """Tensor prefixes of the multi-token-prediction layers."""
    more = keys.whole("num_nextn_predict_layers", 0, least=0)
    return tuple(f"model.layers.{index}." for index in range(layers, layers + more))


FAMILY = Family(
    "deepseek_v3",
    ("deepseek_v3", "kimi_k2"),
    "DeepSeek-V3, DeepSeek-R1, Kimi K2",
    configure,
)
