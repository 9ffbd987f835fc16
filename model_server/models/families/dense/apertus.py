"""Apertus: Llama with normed heads and an ungated feed-forward, whose activation is learned.

Source: Swiss AI 2025 (arXiv:2509.14233), with the activation of Huang and Schlag 2024
(arXiv:2411.13010); names and config keys are those of Hugging Face's `ApertusForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.row_sums import rounded
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import decoder_recipe, rms_norms
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3 import normed_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, one_of
from model_server.models.layers.feed_forward import FeedForward
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm, weight

KEYS = KnownKeys(
    "apertus",
    (*DECODER, "attention_bias"),
    {**DECODER_OFF, "post_norm": one_of(False), "qk_norm": one_of(True)},
)
_DEFAULTS = {"max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_theta": 12000000.0}
_ROPE = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    keys.only("hidden_act", "xielu")
    shape, norm, attention = attention_shape(keys), rms_norms(keys), normed_attention(keys)
    unsaid = keys.get("rope_parameters") is None and keys.get("rope_scaling") is None
    rope = rope_of(keys.all | ({"rope_parameters": _ROPE} if unsaid else {}), shape.head_dim)

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        return PreNormLayer(
            norm(f"{prefix}.attention_layernorm"),
            attention(prefix, shape, form),
            norm(f"{prefix}.feedforward_layernorm"),
            _feed_forward(keys, f"{prefix}.mlp", form),
        )

    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope] * keys.whole("num_hidden_layers"),
        layer=layer,
    )


def _feed_forward(keys: ConfigKeys, name: str, form: WeightForm) -> FeedForward:
    return FeedForward(
        keys.whole("hidden_size"),
        keys.whole("intermediate_size"),
        up=(f"{name}.up_proj.weight",),
        down=(f"{name}.down_proj.weight",),
        activation=Xielu(f"{name}.act_fn"),
        form=form,
    )


class Xielu(nnx.Module):
    """A parabola above zero, an exponential below, each with a learned factor.

    The checkpoint stores the factors as they go into a softplus, and the slope at zero and the
    border below which the exponential is computed beside them.
    """

    def __init__(self, name: str) -> None:
        def scalar(part: str, *shape: int) -> Any:
            axes = (None,) * len(shape)
            return weight(shape, axes, (f"{name}.{part}",), dtype=jnp.float32)

        self.above, self.below = scalar("alpha_p", 1), scalar("alpha_n", 1)
        self.slope, self.border = scalar("beta"), scalar("eps")

    def __call__(self, x: jax.Array) -> jax.Array:
        slope = self.slope[...]
        above = jax.nn.softplus(self.above[...])[None, :]
        below = (slope + jax.nn.softplus(self.below[...]))[None, :]
        bent = jnp.expm1(jnp.minimum(x, self.border[...])) - x
        return rounded(jnp.where(x > 0, above * x * x, bent * below)) + rounded(slope * x)


FAMILY = Family("apertus", ("apertus",), "Apertus", configure)
