"""OLMo Hybrid: OLMo 3 in which most layers are gated delta networks behind norms.

Source: Ai2 2026, "OLMo Hybrid"; Yang et al. 2024 (arXiv:2412.06464); names and config keys are
those of Hugging Face's `OlmoHybridForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import decoder_recipe, gated_ffw, norm_of
from model_server.models.families.llama import attention_shape
from model_server.models.families.olmo2 import all_heads_normed
from model_server.models.families.ropes import settings_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.delta_net import DeltaShape, DeltaSources, GatedDeltaNet
from model_server.models.layers.pre_norm import PostNormLayer, PreNormLayer
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.source import Joined, Tensor, cut
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "olmo_hybrid",
    (
        *DECODER,
        "attention_bias",
        "layer_types",
        "linear_allow_neg_eigval",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
    ),
    {  # how steps are drawn before training
        **DECODER_OFF,
        **ignored("linear_a_log_max", "linear_a_log_min"),
        **ignored("linear_dt_init_floor", "linear_dt_max", "linear_dt_min"),
    },
)
_DEFAULTS = {"max_position_embeddings": 65536, "rms_norm_eps": 1e-6}
_KINDS = {"linear_attention": False, "full_attention": True}
_NORM_EPSILON = 1e-5  # of what a delta net gives, whatever config.json says of the other norms


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, delta, attends = attention_shape(keys), _delta_shape(keys), _attending(keys)
    attention, ffw = all_heads_normed(keys), gated_ffw(keys)

    def layer(index: int, form: WeightForm) -> nnx.Module:
        prefix = f"model.layers.{index}"
        if not attends[index]:
            return PreNormLayer(
                norm_of(keys, f"{prefix}.attention_layer_norm"),
                GatedDeltaNet(delta, _sources(f"{prefix}.linear_attn", delta), form),
                norm_of(keys, f"{prefix}.feedforward_layer_norm"),
                ffw(prefix, form),
            )
        return PostNormLayer(
            attention(prefix, shape, form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
            norm_of(keys, f"{prefix}.post_feedforward_layernorm"),
        )

    rope = _rope(keys, shape.head_dim)
    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope if its else None for its in attends],
        layer=layer,
        states=lambda shards: tuple(None if its else delta.states(shards) for its in attends),
    )


def _attending(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if it attends; unsaid, every fourth, or else the last."""
    found = kinds_of_layers(keys, _KINDS)
    if found is not None:
        return found
    layers = keys.whole("num_hidden_layers")
    fourth = [index % 4 == 3 for index in range(layers)]
    return fourth if any(fourth) else [*fourth[1:], True]


def _rope(keys: ConfigKeys, head_dim: int) -> Rope | None:
    """Return the rope, if config.json has a base for one: published models have none."""
    given = settings_of(keys)
    base = given.get("rope_theta", keys.number_or_none("rope_theta"))
    return None if base is None else rope_of(keys.all, head_dim)


def _delta_shape(keys: ConfigKeys) -> DeltaShape:
    keys.only("hidden_act", "silu")  # of the convolutions as well
    embed, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    key_heads, value_heads = (
        keys.whole(f"linear_num_{of}_heads", heads) for of in ("key", "value")
    )
    if value_heads % key_heads:
        raise CheckpointError(
            f"config.json has linear_num_value_heads = {value_heads}, which linear_num_key_heads = "
            f"{key_heads} does not divide"
        )
    size = keys.whole("linear_key_head_dim", int(0.75 * embed / key_heads))
    return DeltaShape(
        embed=embed,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=size,
        value_dim=keys.whole("linear_value_head_dim", 2 * size),
        width=keys.whole("linear_conv_kernel_dim", 4),
        epsilon=_NORM_EPSILON,
        most_rate=2.0 if keys.flag("linear_allow_neg_eigval", True) else 1.0,
    )


def _sources(name: str, shape: DeltaShape) -> DeltaSources:
    q, k, v, gate, rate, decay, out = ((f"{name}.{part}_proj.weight",) for part in "qkvgbao")
    # Three tensors of all filters: transformers saves them in three equal parts.
    filters = Joined(tuple(Tensor(f"{name}.{part}_conv1d.weight") for part in "qkv"))
    first, second, total = accumulate(shape.parts)
    convolutions = (
        cut(filters, 0, first, of=total),
        cut(filters, first, second, of=total),
        cut(filters, second, total, of=total),
    )
    return DeltaSources(
        q=q,
        k=k,
        v=v,
        gate=gate,
        rate=rate,
        decay=decay,
        convolutions=convolutions,
        log_decay=(f"{name}.A_log",),
        decay_bias=(f"{name}.dt_bias",),
        norm=(f"{name}.o_norm.weight",),
        out=out,
    )


FAMILY = Family("olmo_hybrid", ("olmo_hybrid",), "OLMo Hybrid", configure, own_types_only=True)
