"""Bamba: Mamba-2 in most layers and attention in some, in which half of each head rotates.

Source: IBM, Princeton, CMU and UIUC 2024, "Bamba"; Dao and Gu 2024 (arXiv:2405.21060); names and
config keys are those of Hugging Face's `BambaForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import decoder_recipe, norm_of
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.families.recurrent.mixers import (
    MAMBA,
    MAMBA_DEFAULTS,
    MAMBA_OFF,
    mamba_shape,
)
from model_server.models.families.ropes import partial_rope
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.activations import activation_of
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.state_space import StateSpace
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

_OWN = ("attention_bias", "attn_layer_indices", "attn_rotary_emb", "mlp_bias")
KEYS = KnownKeys(
    "bamba",
    (*DECODER, *MAMBA, *_OWN, "partial_rotary_factor"),
    {**DECODER_OFF, **MAMBA_OFF, **ignored("z_loss_coefficient")},
)
_DEFAULTS = {
    **MAMBA_DEFAULTS,
    "max_position_embeddings": 262144,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, mamba = attention_shape(keys), mamba_shape(keys, keys.number("rms_norm_eps"))
    attends, attention, ffw = (
        _attending(keys),
        biased_attention(keys),
        keys.whole("intermediate_size"),
    )
    activation, biased = activation_of(keys.get("hidden_act", "silu")), keys.flag("mlp_bias")

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            attention(prefix, shape, form)
            if attends[index]
            else StateSpace(mamba, f"{prefix}.mamba", form),
            norm_of(keys, f"{prefix}.pre_ff_layernorm"),
            GatedFeedForward.hugging_face(
                shape.embed,
                ffw,
                f"{prefix}.feed_forward",
                activation=activation,
                form=form,
                biased=biased,
            ),
        )

    keys.only("attn_rotary_emb", None, shape.head_dim // 2)
    rope = partial_rope(keys, shape.head_dim, share=0.5)
    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope if its else None for its in attends],
        layer=layer,
        norm=lambda _: norm_of(keys, "model.final_layernorm"),
        states=lambda shards: tuple(None if its else mamba.states(shards) for its in attends),
    )


def _attending(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if it attends. Raises CheckpointError."""
    layers, chosen = keys.whole("num_hidden_layers"), keys.get("attn_layer_indices", [])
    if not isinstance(chosen, list) or not all(index in range(layers) for index in chosen):
        raise CheckpointError(
            f"config.json has attn_layer_indices = {chosen!r}; give indices of its {layers} layers"
        )
    return [index in chosen for index in range(layers)]


FAMILY = Family("bamba", ("bamba",), "Bamba", configure, own_types_only=True)
