"""MiMo-V2-Flash: small values, sinks and more keys in layers with a window, experts.

Layers with a window have twice the key-value heads of the others, and in each of their heads a
score without a value. Values are smaller than keys.
Source: Xiaomi 2025, "MiMo-V2-Flash"; names and config keys are those of Hugging Face's
`MiMoV2FlashForCausalLM`. The layers that draft are skipped: the reference defines none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.kernels.pages import HeadShape
from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.decoder_recipe import BuildAttention
from model_server.models.families.experts.mlp_layers import listed_sparse, routed_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import FULL, SLIDING, ropes_by_kind
from model_server.models.families.sigmoid_experts import ROUTED, routed_ffw
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.rope import Rope
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# What published files call these keys
_NAMES = {"layernorm_epsilon": "rms_norm_eps", "num_local_experts": "n_routed_experts"}
_OF_WINDOWS = (
    "swa_head_dim",
    "swa_num_attention_heads",
    "swa_num_key_value_heads",
    "swa_rope_theta",
    "swa_v_head_dim",
)
KEYS = KnownKeys(
    "mimo_v2",
    (
        *DECODER,
        *ROUTED,
        *_OF_WINDOWS,
        "attention_bias",
        "attention_value_scale",
        "hybrid_layer_pattern",
        "layer_types",
        "mlp_layer_types",
        "partial_rotary_factor",
        "sliding_window",
        "sliding_window_size",
        "v_head_dim",
    ),
    {
        **DECODER_OFF,
        # A size of chunks that the published code never reads
        **ignored("attention_chunk_size", "hybrid_block_size"),
        "add_full_attention_sink_bias": one_of(False),
        "add_swa_attention_sink_bias": one_of(True),
    },
)
_DEFAULTS = {
    "attention_value_scale": 0.707,
    "first_k_dense_replace": 1,
    "head_dim": 192,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "sliding_window": 129,
    "v_head_dim": 128,
}
_BASES, _SHARE = {FULL: 5e6, SLIDING: 1e4}, 0.334


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = {_NAMES.get(key, key): value for key, value in (config or {}).items()}
    if given.get("routed_scaling_factor") is None:
        given["routed_scaling_factor"] = 1.0
    if isinstance(given.get("moe_layer_freq"), list):  # a flag for each layer
        kinds = {0: "dense", 1: "sparse"}
        given["mlp_layer_types"] = [kinds.get(its) for its in given.pop("moe_layer_freq")]
    keys = ConfigKeys(given, KEYS, _DEFAULTS)
    keys.only("n_shared_experts", None, 0)
    (whole, local), slides, ropes = _shapes(keys), _slides(keys), _ropes(keys)
    narrow = HeadShape(local.kv_heads, local.head_dim, local.found)
    recipe = routed_recipe(
        keys,
        values,
        shapes=[local if slide else whole for slide in slides],
        ropes=[ropes[SLIDING if slide else FULL] for slide in slides],
        attention=_attention(keys),
        sparse=listed_sparse(keys),
        routed=routed_ffw(keys),
        cached=whole,
        others=[narrow if slide else None for slide in slides],
    )
    return replace(recipe, unused=(*recipe.unused, "model.mtp."))


def _shapes(keys: ConfigKeys) -> tuple[AttentionShape, AttentionShape]:
    """Return the shapes of layers that see everything, and of those with a window.

    Raises CheckpointError if their sizes differ in another way than the reference's.
    """
    scale = keys.number_or_none("attention_value_scale")
    plain = attention_shape(keys)
    whole = replace(
        plain,
        value_dim=keys.whole("v_head_dim"),
        value_scale=1.0 if scale is None else scale,
    )
    window = keys.whole("sliding_window")
    if (before := keys.whole_or_none("sliding_window_size")) is not None:
        window = before + 1  # tokens before the query's own
    local = replace(whole, kv_heads=2 * whole.kv_heads, window=window)
    sizes = local.head_dim, local.heads, local.kv_heads, local.found
    for key, size in zip(
        ("swa_head_dim", "swa_num_attention_heads", "swa_num_key_value_heads", "swa_v_head_dim"),
        sizes,
        strict=True,
    ):
        if keys.whole(key, size) != size:
            raise CheckpointError(
                f"config.json has {key} = {keys.get(key)}; layers of the mimo_v2 family that have "
                f"a window have twice the KV heads of the others and else their sizes: {size}"
            )
    return whole, local


def _slides(keys: ConfigKeys) -> list[bool]:
    """One flag per layer. Raises CheckpointError."""
    layers, given = keys.whole("num_hidden_layers"), keys.get("hybrid_layer_pattern")
    if given is None:
        return sliding_layers(keys, lambda index: index > 0 and (index + 1) % 6 != 0)
    if not isinstance(given, list) or len(given) != layers or any(n not in (0, 1) for n in given):
        raise CheckpointError(
            f"config.json has hybrid_layer_pattern = {given!r}; the mimo_v2 family needs a 0 or a "
            f"1 for each of its {layers} layers"
        )
    return sliding_layers(keys, lambda index: bool(given[index]))


def _ropes(keys: ConfigKeys) -> dict[str, Rope]:
    given = keys.get("rope_parameters")
    if given is None:
        bases = {FULL: "rope_theta", SLIDING: "swa_rope_theta"}
        given = {kind: {"rope_theta": keys.number(k, _BASES[kind])} for kind, k in bases.items()}
    share = keys.number("partial_rotary_factor", _SHARE)
    return ropes_by_kind(keys, keys.whole("head_dim"), given, _BASES, share=share)


def _attention(keys: ConfigKeys) -> BuildAttention:
    biased = keys.flag("attention_bias")

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        name = f"{prefix}.self_attn"
        sources = AttentionSources.hugging_face(name, biased=biased)
        sinks = (f"{name}.attention_sink_bias",) if shape.window else None
        return Attention(shape, replace(sources, sinks=sinks), form)

    return build


FAMILY = Family("mimo_v2", ("mimo_v2_flash",), "MiMo-V2-Flash", configure, own_types_only=True)
