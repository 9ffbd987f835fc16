"""Phi-3, Phi-3.5, Phi-4-mini: Llama with fused projections and part of each head rotated.

Source: Abdin et al. 2024 (arXiv:2404.14219), Abouelenin et al. 2025 (arXiv:2503.01743); names and
config keys are those of Hugging Face's `Phi3ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildFfw, pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import rotated_part, settings_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, one_of
from model_server.models.layers.activations import activation_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "phi3",
    (*DECODER, "original_max_position_embeddings", "partial_rotary_factor", "sliding_window"),
    {
        **DECODER_OFF,
        "full_attn_mod": one_of(1),
        "interpolate_factor": one_of(1),
        "lm_head_bias": one_of(False),
    },
)
_DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    served = serving(values, keys.whole("max_position_embeddings"))
    shape = replace(attention_shape(keys), window=keys.whole_or_none("sliding_window"))
    return pre_norm_recipe(
        keys,
        served,
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=_rope(keys, shape.head_dim, served["max_context"]),
        attention=_attention,
        ffw=fused_ffw(keys),
    )


def _rope(keys: ConfigKeys, head_dim: int, context: int) -> Rope:
    """Rope over the rotated part of a head."""
    given = settings_of(keys)
    kind = given.pop("rope_type", given.pop("type", "default"))
    # Early checkpoints call longrope `su` or `yarn`.
    if kind not in ("default", "longrope", "su", "yarn"):
        raise CheckpointError(
            f"rope scaling {kind!r} is not supported; the phi3 family supports: default, longrope"
        )
    given["rope_type"] = "default" if kind == "default" else "longrope"
    part = given.pop("partial_rotary_factor", keys.number("partial_rotary_factor", 1.0))
    rotated = rotated_part(keys, head_dim, part)
    return rope_of(keys.all | {"rope_parameters": given}, rotated, context=context)


def _attention(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
    name = f"{prefix}.self_attn"
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    fused, total = Tensor(f"{name}.qkv_proj.weight"), queries + 2 * keys
    sources = AttentionSources(
        q=cut(fused, 0, queries, of=total),
        k=cut(fused, queries, queries + keys, of=total),
        v=cut(fused, queries + keys, total, of=total),
        out=(f"{name}.o_proj.weight",),
    )
    return Attention(shape, sources, form)


def fused_ffw(keys: ConfigKeys) -> BuildFfw:
    """Builder of a gated feed-forward whose first two matrices are stored as one."""
    embed, ffw = keys.whole("hidden_size"), keys.whole("intermediate_size")
    activation = activation_of(keys.get("hidden_act", "silu"))

    def build(prefix: str, form: WeightForm) -> GatedFeedForward:
        fused = Tensor(f"{prefix}.mlp.gate_up_proj.weight")
        return GatedFeedForward(
            embed,
            ffw,
            gate=cut(fused, 0, ffw, of=2 * ffw),
            up=cut(fused, ffw, 2 * ffw, of=2 * ffw),
            down=(f"{prefix}.mlp.down_proj.weight",),
            activation=activation,
            form=form,
        )

    return build


FAMILY = Family("phi3", ("phi3",), "Phi-3, Phi-3.5, Phi-4-mini", configure)
