"""gpt-oss: attention sinks, windows in every other layer, experts with biases and clamped gates.

Published checkpoints hold the experts as MXFP4, and QUANTIZE null keeps them so.
Source: OpenAI 2025 (arXiv:2508.10925); names and config keys are those of Hugging Face's
`GptOssForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.checkpoints.packed import FLOAT4, Packing
from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.decoder_recipe import BuildFfw, pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.activations import ClampedGate
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.rope import rope_of
from model_server.models.layers.routing import Router, SoftmaxChoice, checked_count
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.quantization import STORED
from model_server.models.weights.source import Portion, Stacked, Tensor, Transposed, WeightSource
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# Checkpoint sources of gpt-oss's experts, which are stored in three ways.


def fused(prefix: str, experts: int, ffw: int, packed: bool) -> ExpertSources:
    """All experts in a tensor of gates and ups by turns, and one of downs.

    packed: as MXFP4, [E, out, in]; else the matrices are [E, in, out].
    """

    def matrices(name: str) -> WeightSource:
        stored = Tensor(f"{prefix}.{name}")
        return stored if packed else Transposed(stored)

    def every_other(source: WeightSource, first: int) -> WeightSource:
        return Portion(source, 1, first, 2 * ffw, of=2 * ffw, step=2)

    both, bias = matrices("gate_up_proj"), Tensor(f"{prefix}.gate_up_proj_bias")
    return ExpertSources(
        count=experts,
        gate=every_other(both, 0),
        up=every_other(both, 1),
        down=matrices("down_proj"),
        biases=(every_other(bias, 0), every_other(bias, 1), Tensor(f"{prefix}.down_proj_bias")),
    )


def apart(prefix: str, experts: int) -> ExpertSources:
    """Each matrix and bias of each expert in a tensor of its own."""

    def each(part: str) -> Stacked:
        return Stacked(tuple(Tensor(f"{prefix}.{number}.{part}") for number in range(experts)))

    gate, up, down = ("gate_proj", "up_proj", "down_proj")
    return ExpertSources(
        count=experts,
        gate=each(f"{gate}.weight"),
        up=each(f"{up}.weight"),
        down=each(f"{down}.weight"),
        biases=(each(f"{gate}.bias"), each(f"{up}.bias"), each(f"{down}.bias")),
    )


KEYS = KnownKeys(
    "gpt_oss",
    (
        *(key for key in DECODER if key != "hidden_act"),
        "attention_bias",
        "experts_apart",
        "experts_per_token",
        "layer_types",
        "num_experts_per_tok",
        "num_local_experts",
        "quantization_config",
        "sliding_window",
        "swiglu_alpha",
        "swiglu_limit",
    ),
    # The gate's own function, see ClampedGate; a number that is also among those of the rope.
    {**DECODER_OFF, "hidden_act": one_of("silu"), **ignored("initial_context_length")},
)
_ROPE = {
    "rope_theta": 150000.0,
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_DEFAULTS = {
    "head_dim": 64,
    "num_experts_per_tok": 4,
    "num_local_experts": 128,
    "rms_norm_eps": 1e-5,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    packed = (keys.get("quantization_config") or {}).get("quant_method") == "mxfp4"
    if packed and values["QUANTIZE"] is None:
        values = {**values, "QUANTIZE": STORED}
    rope = keys.all
    if not (keys.get("rope_parameters") or keys.get("rope_scaling")):
        rope = keys.all | {"rope_parameters": _ROPE}
    shape = attention_shape(keys)
    windows = windows_of(keys, keys.whole("sliding_window"), lambda index: index % 2 == 0)
    recipe = pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[replace(shape, window=window) for window in windows],
        rope=rope_of(rope, shape.head_dim),
        attention=_attention(keys),
        ffw=_routed_ffw(keys, packed),
    )
    return replace(recipe, packing=_packing) if packed else recipe


def _packing(name: str) -> Packing | None:
    experts = name.endswith((".experts.gate_up_proj", ".experts.down_proj"))
    return Packing(FLOAT4, 32, False) if experts else None


def _attention(keys: ConfigKeys) -> Any:
    biased = keys.flag("attention_bias", True)

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        name = f"{prefix}.self_attn"
        sources = AttentionSources.hugging_face(name, biased=biased, out_biased=biased)
        return Attention(shape, replace(sources, sinks=(f"{name}.sinks",)), form)

    return build


def _routed_ffw(keys: ConfigKeys, packed: bool) -> BuildFfw:
    embed, ffw = keys.whole("hidden_size"), keys.whole("intermediate_size")
    experts = keys.whole("num_local_experts")
    choice = SoftmaxChoice(_count(keys, experts), normalised=True)
    gate = ClampedGate(keys.number("swiglu_limit", 7.0), keys.number("swiglu_alpha", 1.702))

    def build(prefix: str, form: WeightForm) -> RoutedFeedForward:
        router = f"{prefix}.mlp.router"
        name = f"{prefix}.mlp.experts"
        one_by_one = keys.flag("experts_apart")  # as GGUF files give them
        sources = apart(name, experts) if one_by_one else fused(name, experts, ffw, packed)
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{router}.weight",), bias=(f"{router}.bias",)),
            Experts(embed, ffw, sources, activation=gate, form=form),
        )

    return build


def _count(keys: ConfigKeys, experts: int) -> int:
    """Return the experts of a token, which config.json may name twice. Raises CheckpointError."""
    count = checked_count(keys, experts)
    if (other := keys.whole("experts_per_token", count)) != count:
        raise CheckpointError(
            f"config.json has num_experts_per_tok = {count} but experts_per_token = {other}"
        )
    return count


FAMILY = Family("gpt_oss", ("gpt_oss",), "gpt-oss", configure, own_types_only=True)
