"""Qwen3: Qwen2 without biases, with a norm over each head's queries and keys.

Source: Yang et al. 2025 (arXiv:2505.09388); names and config keys are those of Hugging Face's
`Qwen3ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildAttention, pre_norm_recipe
from model_server.models.families.qwen2 import WINDOWS, layer_shapes
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.attention import (
    EVERY_NUMBER,
    Attention,
    AttentionShape,
    AttentionSources,
    OutputGate,
)
from model_server.models.layers.layers import RmsNorm
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys("qwen3", (*DECODER, *WINDOWS, "attention_bias"), DECODER_OFF)
DEFAULTS = {
    "head_dim": 128,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "max_position_embeddings": 32768,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    shapes = layer_shapes(keys)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=shapes,
        rope=rope_of(keys.all, shapes[0].head_dim),
        attention=normed_attention(keys),
    )


def normed_attention(
    keys: ConfigKeys,
    *,
    plus_one: bool = False,
    sinks: str | None = None,
    gate: str | None = None,
    gate_kind: OutputGate = EVERY_NUMBER,
) -> BuildAttention:
    """Norms each head, with one scale for all; plus_one: the checkpoint stores it minus one.

    sinks: name of the scores without a value, None: there are none. gate: of the projection that
    gates what the heads found, None: nothing does.
    """
    epsilon = keys.number("rms_norm_eps", 1e-6)
    biased = keys.flag("attention_bias")

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        name = f"{prefix}.self_attn"
        q_norm, k_norm = (
            RmsNorm(shape.head_dim, (f"{name}.{part}.weight",), epsilon=epsilon, plus_one=plus_one)
            for part in ("q_norm", "k_norm")
        )
        sources = AttentionSources.hugging_face(name, biased=biased, out_biased=biased)
        opens = None if gate is None else (f"{name}.{gate}.weight",)
        return Attention(
            shape,
            replace(sources, gate=opens, sinks=sinks and (f"{name}.{sinks}",)),
            form,
            q_norm=q_norm,
            k_norm=k_norm,
            gate=gate_kind,
        )

    return build


FAMILY = Family("qwen3", ("qwen3",), "Qwen3, Qwen3-Embedding, Qwen3-Reranker", configure)
