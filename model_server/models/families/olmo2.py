"""OLMo 2: norms after each half, and over the queries and keys of all heads together.

Source: Walsh et al. 2025 (arXiv:2501.00656); names and config keys are those of Hugging Face's
`Olmo2ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.row_sums import unit
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import (
    BuildAttention,
    decoder_recipe,
    gated_ffw,
    norm_of,
)
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.pre_norm import PostNormLayer
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.sharding import split_heads
from model_server.models.weights.source import RepeatedGroups, Tensor, WeightSource
from model_server.models.weights.weight import WeightForm, weight

KEYS = KnownKeys("olmo2", (*DECODER, "attention_bias"), DECODER_OFF)
_DEFAULTS = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, layers = attention_shape(keys), keys.whole("num_hidden_layers")
    return post_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * layers,
        ropes=[rope_of(keys.all, shape.head_dim)] * layers,
    )


def post_norm_recipe(
    keys: ConfigKeys,
    served: Mapping[str, Any],
    *,
    shapes: Sequence[AttentionShape],
    ropes: Sequence[Rope | None],
    attention: BuildAttention | None = None,
) -> Recipe:
    """Build a recipe over layers with norms after each half; shapes, ropes: one per layer."""
    make_attention, ffw = attention or all_heads_normed(keys), gated_ffw(keys)

    def layer(index: int, form: WeightForm) -> PostNormLayer:
        prefix = f"model.layers.{index}"
        return PostNormLayer(
            make_attention(prefix, shapes[index], form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
            norm_of(keys, f"{prefix}.post_feedforward_layernorm"),
        )

    return decoder_recipe(
        keys,
        served,
        shape=shapes[0],
        ropes=ropes,
        layer=layer,
        windows=[shape.window for shape in shapes],
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
        normed = unit(x.reshape(len(x), -1), self.epsilon).reshape(x.shape)
        return normed * self.scale[...].reshape(x.shape[1:])[None]


def all_heads_normed(keys: ConfigKeys) -> BuildAttention:
    """Norms the queries of all heads together, and their keys."""
    epsilon, biased = keys.number("rms_norm_eps"), keys.flag("attention_bias")

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        name, size = f"{prefix}.self_attn", shape.head_dim
        split = split_heads(shape.heads, shape.kv_heads, form.layout.shards("heads"))
        q_scale = Tensor(f"{name}.q_norm.weight")
        # Every KV head is copied equally often, so copies do not change the mean.
        k_scale = RepeatedGroups(Tensor(f"{name}.k_norm.weight"), size, split.copies)
        return Attention(
            shape,
            AttentionSources.hugging_face(name, biased=biased, out_biased=biased),
            form,
            q_norm=AllHeadsNorm(shape.heads, size, q_scale, split.axis, epsilon=epsilon),
            k_norm=AllHeadsNorm(split.kv_heads, size, k_scale, split.axis, epsilon=epsilon),
        )

    return build


FAMILY = Family("olmo2", ("olmo2",), "OLMo 2", configure)
