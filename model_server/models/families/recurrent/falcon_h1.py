"""Falcon-H1: attention and Mamba-2 side by side in every layer, with a factor for each product.

Source: TII 2025 (arXiv:2507.22448); names and config keys are those of Hugging Face's
`FalconH1ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import decoder_recipe, norm_of
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.families.recurrent.falcon_h1_layers import (
    AttendingHalf,
    HalvedDecoder,
    RecurrentHalf,
    ScaledFeedForward,
    StreamNorm,
)
from model_server.models.families.recurrent.mixers import (
    MAMBA,
    MAMBA_DEFAULTS,
    MAMBA_OFF,
    mamba_shape,
)
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, all_in, ignored
from model_server.models.layers.layers import activation_of
from model_server.models.layers.rope import rope_of
from model_server.models.layers.state_space import StateSpace, StateSpaceShape
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

_FACTORS = (
    "attention_in_multiplier",
    "attention_out_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "lm_head_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)
KEYS = KnownKeys(
    "falcon_h1",
    (
        *DECODER,
        *MAMBA,
        *_FACTORS,
        "attention_bias",
        "mamba_d_ssm",
        "mamba_norm_before_gate",
        "mamba_rms_norm",
        "mlp_bias",
        "mlp_multipliers",
        "projectors_bias",
        "ssm_multipliers",
    ),
    # Notes of the training; the kinds of layers are all the same.
    {
        **DECODER_OFF,
        **MAMBA_OFF,
        **ignored("attn_layer_indices", "mamba_use_mlp", "mlp_expansion_factor"),
        "layer_types": all_in("hybrid"),
        "layers_block_type": all_in("hybrid"),
    },
)
_DEFAULTS = {
    **MAMBA_DEFAULTS,
    **dict.fromkeys(_FACTORS, 1.0),
    "mamba_d_ssm": 1024,
    "mamba_norm_before_gate": True,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, mamba, layers = attention_shape(keys), _mamba(keys), keys.whole("num_hidden_layers")
    # A factor of the keys is one of the scores.
    shape = replace(shape, scale=shape.scale * keys.number("key_multiplier"))
    attention, ffw = biased_attention(keys), _ffw(keys)

    def layer(index: int, form: WeightForm) -> nnx.Module:
        prefix = f"model.layers.{index // 2}"
        norm = norm_of(keys, f"{prefix}.input_layernorm")
        if index % 2 == 0:
            return AttendingHalf(
                norm,
                attention(prefix, shape, form),
                factor=keys.number("attention_in_multiplier"),
                out_factor=keys.number("attention_out_multiplier"),
            )
        return RecurrentHalf(
            norm,
            StateSpace(mamba, f"{prefix}.mamba", form),
            norm_of(keys, f"{prefix}.pre_ff_layernorm"),
            ffw(f"{prefix}.feed_forward", form),
            factor=keys.number("ssm_in_multiplier"),
            out_factor=keys.number("ssm_out_multiplier"),
        )

    recipe = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope_of(keys.all, shape.head_dim), None] * layers,
        layer=layer,
        norm=lambda _: StreamNorm(norm_of(keys, "model.final_layernorm")),
        embedding_scale=lambda _: keys.number("embedding_multiplier"),
        logits_scale=keys.number("lm_head_multiplier"),
        states=lambda shards: (None, mamba.states(shards)) * layers,
        kind=HalvedDecoder,
    )
    return replace(recipe, carried=2 * shape.embed)


def _mamba(keys: ConfigKeys) -> StateSpaceShape:
    inner = keys.whole("mamba_d_ssm", int(keys.number("mamba_expand") * keys.whole("hidden_size")))
    return replace(
        mamba_shape(keys, keys.number("rms_norm_eps"), inner),
        out_biased=keys.flag("projectors_bias"),
        normed=keys.flag("mamba_rms_norm"),
        norms_first=keys.flag("mamba_norm_before_gate"),
        factors=_numbers(keys, "ssm_multipliers", 5),
    )


def _ffw(keys: ConfigKeys) -> Any:
    embed, ffw, biased = (
        keys.whole("hidden_size"),
        keys.whole("intermediate_size"),
        keys.flag("mlp_bias"),
    )
    activation = activation_of(keys.get("hidden_act", "silu"))
    factor, out_factor = _numbers(keys, "mlp_multipliers", 2)

    def build(prefix: str, form: WeightForm) -> ScaledFeedForward:
        names = [f"{prefix}.{part}_proj" for part in ("gate", "up", "down")]
        gate, up, down = ((f"{name}.weight",) for name in names)
        biases = tuple((f"{name}.bias",) for name in names) if biased else None
        rest = {"gate": gate, "up": up, "down": down, "biases": biases, "form": form}
        return ScaledFeedForward(
            embed, ffw, factor=factor, out_factor=out_factor, activation=activation, **rest
        )

    return build


def _numbers(keys: ConfigKeys, key: str, count: int) -> tuple[float, ...]:
    given = keys.get(key, [1.0] * count)
    if not isinstance(given, list) or [type(x) in (int, float) for x in given] != [True] * count:
        raise CheckpointError(f"config.json has {key} = {given!r}; give {count} numbers")
    return tuple(map(float, given))


FAMILY = Family("falcon_h1", ("falcon_h1",), "Falcon-H1", configure, own_types_only=True)
