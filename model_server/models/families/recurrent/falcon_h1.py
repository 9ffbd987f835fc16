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
from model_server.models.families.recurrent.falcon_h1_keys import DEFAULTS, KEYS, numbers_of
from model_server.models.families.recurrent.falcon_h1_layers import (
    AttendingHalf,
    HalvedDecoder,
    RecurrentHalf,
    ScaledFeedForward,
    StreamNorm,
)
from model_server.models.families.recurrent.mixers import mamba_shape
from model_server.models.layers.layers import activation_of
from model_server.models.layers.rope import rope_of
from model_server.models.layers.state_space import StateSpace, StateSpaceShape
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
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
        factors=numbers_of(keys, "ssm_multipliers", 5),
    )


def _ffw(keys: ConfigKeys) -> Any:
    embed, ffw, biased = (
        keys.whole("hidden_size"),
        keys.whole("intermediate_size"),
        keys.flag("mlp_bias"),
    )
    activation = activation_of(keys.get("hidden_act", "silu"))
    factor, out_factor = numbers_of(keys, "mlp_multipliers", 2)

    def build(prefix: str, form: WeightForm) -> ScaledFeedForward:
        names = [f"{prefix}.{part}_proj" for part in ("gate", "up", "down")]
        gate, up, down = ((f"{name}.weight",) for name in names)
        biases = tuple((f"{name}.bias",) for name in names) if biased else None
        rest = {"gate": gate, "up": up, "down": down, "biases": biases, "form": form}
        return ScaledFeedForward(
            embed, ffw, factor=factor, out_factor=out_factor, activation=activation, **rest
        )

    return build


FAMILY = Family("falcon_h1", ("falcon_h1",), "Falcon-H1", configure, own_types_only=True)
