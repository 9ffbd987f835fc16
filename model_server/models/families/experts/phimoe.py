"""Phi-3.5-MoE: layer norms, biases everywhere, and two experts of sixteen weighed by sparse mixing.

Source: Abdin et al. 2024 (arXiv:2404.14219); names and config keys are those of Hugging Face's
`PhimoeForCausalLM`. For sequences longer than the original context positions take the second list
of factors, as in Microsoft's own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import pre_norm_recipe
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.families.mixtral import block_sparse_ffw
from model_server.models.families.ropes import settings_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.layers import LayerNorm, Linear
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.layers.routing import SparseMixerChoice
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "phimoe",
    (
        *DECODER,
        "attention_bias",
        "lm_head_bias",
        "num_experts_per_tok",
        "num_local_experts",
        "original_max_position_embeddings",
        "router_jitter_noise",
        "sliding_window",
    ),
    {**DECODER_OFF, **ignored("input_jitter_noise")},  # of training
)
_DEFAULTS = {
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "router_jitter_noise": 0.01,
}
_BASE = {"rope_theta": 1e6}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    served = serving(values, keys.whole("max_position_embeddings"))
    shape = attention_shape(keys, window=keys.whole_or_none("sliding_window"))
    keys.only("num_experts_per_tok", 2)

    def norm(name: str) -> LayerNorm:
        scale, bias = (f"{name}.weight",), (f"{name}.bias",)
        return LayerNorm(shape.embed, scale, bias, epsilon=keys.number("rms_norm_eps"))

    return pre_norm_recipe(
        keys,
        served,
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=_rope(keys, shape.head_dim, served["max_context"]),
        attention=biased_attention(keys),
        ffw=block_sparse_ffw(keys, SparseMixerChoice(keys.number("router_jitter_noise"))),
        norm=norm,
        head=None if keys.flag("tie_word_embeddings") else _head(keys),
    )


def _head(keys: ConfigKeys) -> Any:
    bias = ("lm_head.bias",) if keys.flag("lm_head_bias") else None
    sizes = keys.whole("vocab_size"), keys.whole("hidden_size")

    def build(form: WeightForm) -> Linear:
        return Linear(*sizes, ("vocab", "embed"), ("lm_head.weight",), form=form, bias=bias)

    return build


def _rope(keys: ConfigKeys, head_dim: int, context: int) -> Rope:
    """Build the rope, of which long and short sequences have one factor. Raises CheckpointError."""
    given = settings_of(keys)
    short, long = (given.pop(f"{name}_mscale", None) for name in ("short", "long"))
    if short != long:
        raise CheckpointError(
            f"config.json has short_mscale = {short!r} and long_mscale = {long!r} among its rope "
            "settings; the phimoe family needs the same for both"
        )
    if short is not None:
        given["attention_factor"] = short
    base = _BASE if "rope_theta" not in given and keys.get("rope_theta") is None else {}
    return rope_of(keys.all | base | {"rope_parameters": given}, head_dim, context=context)


FAMILY = Family("phimoe", ("phimoe",), "Phi-3.5-MoE", configure, own_types_only=True)
