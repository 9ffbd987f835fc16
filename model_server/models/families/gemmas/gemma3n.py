"""Gemma 3n: several versions of each token, inputs per layer, shared keys and sparse gates.

Only the text part of a multimodal checkpoint is read.
Source: Google 2025, "Gemma 3n"; names and config keys are those of Hugging Face's
`Gemma3nForCausalLM` and `Gemma3nForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.decoder_recipe import norm_of
from model_server.models.families.gemma3 import ropes_of
from model_server.models.families.gemmas.alternating import Alternation, Expanded, Merged, Residual
from model_server.models.families.gemmas.gemma3n_keys import (
    DEFAULTS,
    KEYS,
    sparsities_of,
    widths_of,
)
from model_server.models.families.gemmas.gemma3n_layer import AlternatingLayer, sparse_ffw
from model_server.models.families.gemmas.lending_recipe import (
    activation_in,
    epsilon_of,
    gate_of,
    lenders_of,
    lending_recipe,
    norms_of,
)
from model_server.models.families.llama import attention_shape
from model_server.models.layers.lending.lent_attention import LentAttention
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    slides = sliding_layers(keys, lambda index: (index + 1) % 5 != 0)
    lenders, window = lenders_of(keys, slides), keys.whole("sliding_window")
    shape, versions = replace(attention_shape(keys), scale=1.0), keys.whole("altup_num_inputs")
    widths, sparsities, embed = widths_of(keys), sparsities_of(keys), shape.embed
    whole, local = ropes_of(keys)

    def layer(index: int, form: WeightForm) -> AlternatingLayer:
        name = f"model.layers.{index}"
        rank, epsilon = keys.whole("laurel_rank"), epsilon_of(keys)
        return AlternatingLayer(
            norms_of(keys, name),
            LentAttention(
                replace(shape, window=window if slides[index] else None),
                f"{name}.self_attn",
                form,
                epsilon=epsilon,
                borrows=lenders[index] is not None,
                biased=keys.flag("attention_bias"),
            ),
            sparse_ffw(
                (embed, widths[index]), f"{name}.mlp", form, activation_in(keys), sparsities[index]
            ),
            alternation=_alternation(keys, f"{name}.altup"),
            residual=Residual(embed, rank, f"{name}.laurel", form, epsilon=epsilon),
            gate=gate_of(keys, name, form),
        )

    def expand(form: WeightForm) -> Expanded:
        return Expanded(embed, versions, "model.altup_projections", form)

    def final(form: WeightForm) -> Merged:
        norm = norm_of(keys, "model.norm")
        return Merged(embed, versions, "model.altup_unembed_projections", form, norm)

    return lending_recipe(
        keys,
        values,
        shape=shape,
        lenders=lenders,
        ropes=[local if slide else whole for slide in slides],
        windows=[window if slide else None for slide in slides],
        layer=layer,
        final=final,
        expand=expand,
        versions=versions,
    )


def _alternation(keys: ConfigKeys, name: str) -> Alternation:
    return Alternation(
        keys.whole("hidden_size"),
        keys.whole("altup_num_inputs"),
        keys.whole("altup_active_idx", least=0),
        name,
        epsilon=epsilon_of(keys),
        scaled=keys.flag("altup_correct_scale"),
    )


FAMILY = Family("gemma3n", ("gemma3n_text", "gemma3n"), "Gemma 3n", configure, own_types_only=True)
