"""OLMo 2: norms after each half, and over the queries and keys of all heads together.

Source: Walsh et al. 2025 (arXiv:2501.00656); names and config keys are those of Hugging Face's
`Olmo2ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import decoder_recipe, gated_ffw, norm_of
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.pre_norm import PostNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Recipe, serving
from model_server.models.weights.sharding import split_heads
from model_server.models.weights.source import RepeatedGroups, Tensor, WeightSource
from model_server.models.weights.weight import WeightForm, weight

KEYS = KnownKeys("olmo2", (*DECODER, "attention_bias"), DECODER_OFF)
_DEFAULTS = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, ffw = attention_shape(keys), gated_ffw(keys)

    def layer(index: int, form: WeightForm) -> PostNormLayer:
        prefix = f"model.layers.{index}"
        return PostNormLayer(
            _attention(keys, f"{prefix}.self_attn", shape, form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
            norm_of(keys, f"{prefix}.post_feedforward_layernorm"),
        )

    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope_of(keys.all, shape.head_dim)] * keys.whole("num_hidden_layers"),
        layer=layer,
    )


class AllHeadsNorm(nnx.Module):
    """RMS norm over all heads of a token together, f32[T, heads, Q]."""

    def __init__(
        self, heads: int, head_dim: int, source: WeightSource, axis: str | None, *, epsilon: float
    ) -> None:
        self.scale = weight((heads * head_dim,), (axis,), source, dtype=jnp.float32)
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        # The heads may be sharded, in which case this mean reduces over devices.
        mean_square = jnp.mean(jnp.square(x), axis=(-2, -1), keepdims=True)
        scale = self.scale[...].reshape(x.shape[1:])
        return x * jax.lax.rsqrt(mean_square + self.epsilon) * scale[None]


def _attention(keys: ConfigKeys, name: str, shape: AttentionShape, form: WeightForm) -> Attention:
    split = split_heads(shape.heads, shape.kv_heads, form.layout.shards("heads"))
    epsilon, biased = keys.number("rms_norm_eps"), keys.flag("attention_bias")
    # Every KV head is copied equally often, so copies do not change the mean.
    k_scale = RepeatedGroups(Tensor(f"{name}.k_norm.weight"), shape.head_dim, split.copies)
    return Attention(
        shape,
        AttentionSources.hugging_face(name, biased=biased, out_biased=biased),
        form,
        q_norm=AllHeadsNorm(
            shape.heads,
            shape.head_dim,
            Tensor(f"{name}.q_norm.weight"),
            split.axis,
            epsilon=epsilon,
        ),
        k_norm=AllHeadsNorm(split.kv_heads, shape.head_dim, k_scale, split.axis, epsilon=epsilon),
    )
