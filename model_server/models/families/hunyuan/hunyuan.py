"""Hunyuan (dense): Llama whose queries and keys are normed after they are rotated.

Source: Tencent 2025, "Hunyuan-7B"; names and config keys are those of Hugging Face's
`HunYuanDenseV1ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import (
    BuildAttention,
    BuildFfw,
    gated_ffw,
    pre_norm_recipe,
)
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import settings_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.layers import RmsNorm
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# Token ids, and settings of the experts and image parts that the dense models do not have.
_UNUSED = ignored(
    "attention_head_dim",  # head_dim says it
    "cla_share_factor",
    "class_num",
    "eod_token_id",
    "im_end_id",
    "im_newline_id",
    "im_start_id",
    "image_token_id",
    "mask_init_id",
    "org_vocab_size",
    "pad_id",
    "pool_type",
    "sep_token_id",
    "text_end_id",
    "text_start_id",
    "video_end_id",
    "video_start_id",
)
KEYS = KnownKeys(
    "hunyuan",
    (*DECODER, "attention_bias"),
    {
        **DECODER_OFF,
        **_UNUSED,
        "add_classification_head": one_of(False),
        "norm_type": one_of("hf_rms", "rms"),
        "position_embedding_xdrope": one_of(False),
        "use_cla": one_of(False),
        "use_qk_norm": one_of(True),
        "use_rotary_pos_emb": one_of(True),
    },
)
DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    return recipe_of(keys, values, gated_ffw(keys))


def recipe_of(keys: ConfigKeys, values: Mapping[str, Any], ffw: BuildFfw) -> Recipe:
    """Return the recipe around a feed-forward part, which its models with experts have as well."""
    shape = attention_shape(keys)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=_rope_with_alpha(keys, shape.head_dim),
        attention=_late_normed_attention(keys),
        ffw=ffw,
    )


def _rope_with_alpha(keys: ConfigKeys, head_dim: int) -> Rope:
    """Build the rope; `alpha` raises its base once and for all, although the type is `dynamic`.

    The published settings have more keys, which only other kinds read.
    """
    given = settings_of(keys)
    alpha, kind = given.get("alpha"), given.get("rope_type", given.get("type"))
    if kind != "dynamic" or alpha is None:
        return rope_of(keys.all | {"rope_parameters": given}, head_dim)
    if type(alpha) not in (int, float) or alpha <= 0 or head_dim < 4:
        raise CheckpointError(f"config.json has alpha = {alpha!r} among its rope settings")
    base = float(given.get("rope_theta") or keys.number("rope_theta", 10000.0))
    return rope_of({}, head_dim, theta=base * alpha ** (head_dim / (head_dim - 2)))


def _late_normed_attention(keys: ConfigKeys) -> BuildAttention:
    """Builder of attention that norms queries and keys after their rotation."""
    epsilon, biased = keys.number("rms_norm_eps"), keys.flag("attention_bias")

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        name = f"{prefix}.self_attn"
        q_norm, k_norm = (
            RmsNorm(shape.head_dim, (f"{name}.{part}_layernorm.weight",), epsilon=epsilon)
            for part in ("query", "key")
        )
        sources = AttentionSources.hugging_face(name, biased=biased, out_biased=biased)
        return Attention(shape, sources, form, q_norm=q_norm, k_norm=k_norm, rotates_first=True)

    return build


FAMILY = Family("hunyuan", ("hunyuan_v1_dense",), "Hunyuan 0.5B to 7B (dense)", configure)
