"""Kin of Llama: SmolLM3, Granite, Seed-OSS, ERNIE, Hunyuan, AFM, Ministral 3, Apertus, Phi, OLMo.

SmolLM3, Granite and Arcee reach llama.cpp's converter as Llamas, so rows of queries and keys are
reordered. Seed-OSS's and Hunyuan's are as published, as are Phi's, whose q/k/v and gate/up stay
fused; ERNIE rotates neighbouring dimensions as llama.cpp does. Files of Hunyuan hold the base of
its positions as `alpha` has raised it, and those of Apertus the numbers of its activation in the
metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    JoinedPlace,
    TensorPlace,
    place,
    rotated,
)
from model_server.checkpoints.gguf.architectures.llama import (
    HEAD_NORMS,
    INVERSE_FREQUENCIES,
    NORMS,
    PROJECTIONS,
    TENSORS,
    feed_forward,
)
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    DECODER,
    FULL,
    SLIDING,
    WINDOW,
    head_dim,
    heads_metadata,
    layer_types,
    read_layer_types,
    read_partly_rotated_heads,
    read_window,
    window_metadata,
)
from model_server.checkpoints.gguf.rope import (
    longrope_factors,
    longrope_metadata,
    read_longrope,
    read_rotary_heads,
    rope_factors,
    rope_type,
    rotary_heads_metadata,
)
from sax.errors import CheckpointError

_REORDERED: Mapping[str, TensorPlace] = {
    **NORMS,
    **PROJECTIONS,
    "attn_q": place("self_attn.q_proj", order=rotated("num_attention_heads")),
    "attn_k": place("self_attn.k_proj", order=rotated("num_key_value_heads")),
}
_Q, _OUT, _FFW = "blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias"
_BIASES = {"attention_bias": _Q, "mlp_bias": _FFW}
_UNROTATED = 4  # every so manieth layer of SmolLM3, which files take for granted


def _with_biases(biases: Mapping[str, str]) -> Callable[[Facts, dict[str, Any]], dict[str, Any]]:
    """config.json key -> tensor that there is if it is true."""

    def read(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
        given = {key: facts.has(name) for key, name in biases.items()}
        return read_rotary_heads(facts, config) | given

    return read


def _read_smollm3(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    more = {"layer_types": [FULL] * layers, "no_rope_layers": _rotated_layers(layers)}
    return _with_biases(_BIASES)(facts, config) | more


def _smollm3_metadata(config: Config) -> dict[str, Any]:
    given, layers = config.get("no_rope_layers"), config["num_hidden_layers"]
    if given is not None and given[:layers] != _rotated_layers(layers):
        raise CheckpointError(
            f"a smollm3 model with no_rope_layers = {given} cannot be written as GGUF, which "
            f"assumes that every {_UNROTATED}th layer does not rotate"
        )
    return rotary_heads_metadata(config)


def _rotated_layers(layers: int) -> list[int]:
    return [int((layer + 1) % _UNROTATED != 0) for layer in range(layers)]


SMOLLM3 = GgufArchitecture(
    name="smollm3",
    model_types={"smollm3": "SmolLM3ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={**_REORDERED, **feed_forward()},
    keys=DECODER,
    fixed={
        "hidden_act": "silu",
        "no_rope_layer_interval": _UNROTATED,
        "use_sliding_window": False,
    },
    more_config=_read_smollm3,
    more_metadata=_smollm3_metadata,
    factors=rope_factors,
)
GRANITE = GgufArchitecture(
    name="granite",
    model_types={"granite": "GraniteForCausalLM"},
    tensors=TENSORS,
    layer_tensors={**_REORDERED, **feed_forward()},
    keys=(
        *DECODER,
        Key("attention_multiplier", "attention.scale", float, 1.0),
        Key("embedding_multiplier", "embedding_scale", float, 1.0),
        Key("logits_scaling", "logit_scale", float, 1.0),
        Key("residual_multiplier", "residual_scale", float, 1.0),
    ),
    fixed={"hidden_act": "silu"},
    more_config=_with_biases(_BIASES),
    more_metadata=rotary_heads_metadata,
    factors=rope_factors,
)


def _routed(config: Config, layer: int) -> bool:
    return "num_local_experts" in config


def _unrouted(config: Config, layer: int) -> bool:
    return not _routed(config, layer)


def _shares(config: Config, layer: int) -> bool:
    return bool(config.get("shared_intermediate_size"))


def _read_swash(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    """Read Granite Swash, with experts or without."""
    layers = config["num_hidden_layers"]
    more = {
        **_with_biases(_BIASES)(facts, config),
        "sliding_window": facts.whole(WINDOW),
        "layer_types": read_layer_types(facts, layers, 0),
    }
    turned = facts.get_any(_ROPE_PATTERN)
    if turned is not None:
        turns = facts.listed(_ROPE_PATTERN, layers)
        more["layer_rope_theta"] = [more["rope_theta"] if its else 0 for its in turns]
    if not facts.get("expert_count"):
        return more
    more.pop("mlp_bias")
    return more | {
        "model_type": "granitemoe_swa",
        "num_local_experts": facts.whole("expert_count"),
        "num_experts_per_tok": facts.whole("expert_used_count"),
        "shared_intermediate_size": facts.value(_SHARED),
    }


_ROPE_PATTERN = "attention.rope_pattern"
_SHARED = Key("shared_intermediate_size", "expert_shared_feed_forward_length", default=0, least=0)
GRANITE_SWA = GgufArchitecture(
    name="granite_swa",
    model_types={
        "granite_swa": "GraniteSWAForCausalLM",
        "granitemoe_swa": "GraniteMoeSWAForCausalLM",
    },
    tensors=TENSORS,
    layer_tensors={
        **_REORDERED,
        "attn_sinks.weight": place("self_attn.sinks"),
        **feed_forward(needed=_unrouted),
        "ffn_gate_inp": place("block_sparse_moe.router", needed=_routed),
        "ffn_up_shexp": place("shared_mlp.input_linear", needed=_shares),
        "ffn_down_shexp": place("shared_mlp.output_linear", needed=_shares),
    },
    joined=(
        JoinedPlace(
            name="block_sparse_moe.experts.gate_up_proj",
            parts=("ffn_gate_up_exps.weight",),
            needed=_routed,
        ),
        JoinedPlace(
            name="block_sparse_moe.experts.down_proj",
            parts=("ffn_down_exps.weight",),
            needed=_routed,
        ),
    ),
    keys=GRANITE.keys,
    fixed={"hidden_act": "silu"},
    more_config=_read_swash,
)
ARCEE = GgufArchitecture(
    name="arcee",
    model_types={"arcee": "ArceeForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **_REORDERED,
        "ffn_up": place("mlp.up_proj"),
        "ffn_down": place("mlp.down_proj"),
    },
    keys=DECODER,
    fixed={"hidden_act": "relu2"},
    more_config=_with_biases(_BIASES),
    more_metadata=rotary_heads_metadata,
    factors=rope_factors,
)
SEED_OSS = GgufArchitecture(
    name="seed_oss",
    model_types={"seed_oss": "SeedOssForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **PROJECTIONS,
        **feed_forward(),
        "attn_norm": place("input_layernorm"),
        "post_attention_norm": place("post_attention_layernorm"),
    },
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_with_biases({**_BIASES, "attention_out_bias": _OUT}),
    more_metadata=rotary_heads_metadata,
    factors=rope_factors,
)
ERNIE4_5 = GgufArchitecture(
    name="ernie4_5",
    model_types={"ernie4_5": "Ernie4_5ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={**NORMS, **PROJECTIONS, **feed_forward()},
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_with_biases({"use_bias": _Q}),
    more_metadata=rotary_heads_metadata,
    factors=rope_factors,
)
HUNYUAN_DENSE = GgufArchitecture(
    name="hunyuan-dense",
    model_types={"hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        **feed_forward(),
        "attn_q_norm": place("self_attn.query_layernorm"),
        "attn_k_norm": place("self_attn.key_layernorm"),
    },
    keys=DECODER,
    fixed={"hidden_act": "silu", "mlp_bias": False, "use_cla": False, "use_qk_norm": True},
    more_config=_with_biases({"attention_bias": _Q}),
    more_metadata=rotary_heads_metadata,
)


def _read_ministral3(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = read_rotary_heads(facts, config)
    more |= {"sliding_window": None}
    if not more["rope_scaling"]:  # Mistral Small 3, whose files said llama before
        return more | {"model_type": "mistral"}
    scaling, theta = more.pop("rope_scaling"), more.pop("rope_theta")
    if scaling["rope_type"] != "yarn":
        raise CheckpointError("its rope.scaling.type must be yarn, or absent")
    multiplier, beta = "rope.scaling.yarn_log_multiplier", "attention.temperature_scale"
    # Unlike DeepSeek's, these files hold mscale_all_dim itself.
    scales = dict.fromkeys(("mscale", "mscale_all_dim"), facts.number(multiplier, 1.0))
    growth = {"llama_4_scaling_beta": round(facts.number(beta), 6), "rope_theta": theta}
    return more | {"rope_parameters": scaling | scales | growth}


MISTRAL3 = GgufArchitecture(
    name="mistral3",
    model_types={"ministral3": "Ministral3ForCausalLM", "mistral": "MistralForCausalLM"},
    tensors=TENSORS,
    layer_tensors={**_REORDERED, **feed_forward()},
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_read_ministral3,
)
APERTUS = GgufArchitecture(
    name="apertus",
    model_types={"apertus": "ApertusForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **PROJECTIONS,
        **HEAD_NORMS,
        "attn_norm": place("attention_layernorm"),
        "ffn_norm": place("feedforward_layernorm"),
        "ffn_up": place("mlp.up_proj"),
        "ffn_down": place("mlp.down_proj"),
    },
    listed={
        "mlp.act_fn.alpha_p": ("xielu.alpha_p", (1,)),
        "mlp.act_fn.alpha_n": ("xielu.alpha_n", (1,)),
        "mlp.act_fn.beta": ("xielu.beta", ()),
        "mlp.act_fn.eps": ("xielu.eps", ()),
    },
    keys=DECODER,
    fixed={"hidden_act": "xielu"},
    more_config=_with_biases({"attention_bias": _Q}),
)


def _read_phi3(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = read_partly_rotated_heads(facts, config)
    rotated = more.pop("rotated")
    return {
        **more,
        **read_longrope(facts, rotated, config["max_position_embeddings"]),
        "partial_rotary_factor": rotated / more["head_dim"],
        "sliding_window": read_window(facts),
    }


def _phi3_metadata(config: Config) -> dict[str, Any]:
    everywhere = layer_types(config["num_hidden_layers"], 0)
    return {
        **heads_metadata(config, _phi3_rotated(config)),
        **longrope_metadata(config),
        **window_metadata(config.get("sliding_window"), everywhere, 0),
    }


def _phi3_rotated(config: Config) -> int:
    given = (config.get("rope_parameters") or {}).get("partial_rotary_factor")
    return int(head_dim(config) * (given or config.get("partial_rotary_factor") or 1.0))


PHI3 = GgufArchitecture(
    name="phi3",
    model_types={"phi3": "Phi3ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        "attn_qkv": place("self_attn.qkv_proj"),
        "attn_output": place("self_attn.o_proj"),
        "ffn_up": place("mlp.gate_up_proj"),
        "ffn_down": place("mlp.down_proj"),
    },
    keys=DECODER,
    fixed={"hidden_act": "silu", "attention_bias": False},
    more_config=_read_phi3,
    more_metadata=_phi3_metadata,
    factors=longrope_factors,
    dropped=INVERSE_FREQUENCIES,
)


# --- OLMo 2, OLMo 3 and EXAONE 4: norms after attention and feed-forward; rows are as published.
#
# llama.cpp treats OLMo 3 as an OLMo 2 with windows.

_LOCAL_THETA = "rope.freq_base_swa"
_PERIOD = 4  # every fourth layer of OLMo 3 and EXAONE 4 sees everything
_LAYER: Mapping[str, TensorPlace] = {
    **PROJECTIONS,
    **HEAD_NORMS,
    **feed_forward(),
    "post_attention_norm": place("post_attention_layernorm"),
    "post_ffw_norm": place("post_feedforward_layernorm"),
}


def _read_windows(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    layers, window = config["num_hidden_layers"], read_window(facts)
    kinds = read_layer_types(facts, layers, _PERIOD) if window else [FULL] * layers
    return {"layer_types": kinds, "sliding_window": window}


def _window_metadata(config: Config) -> dict[str, Any]:
    given = config.get("sliding_window_pattern")
    period = given if isinstance(given, int) else _PERIOD
    kinds = config.get("layer_types") or layer_types(config["num_hidden_layers"], period)
    return window_metadata(config.get("sliding_window", 4096), kinds, _PERIOD)


def _read_olmo(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = read_rotary_heads(facts, config)
    if not read_window(facts):
        return more
    local = {"rope_type": "default", "rope_theta": facts.number(_LOCAL_THETA, more["rope_theta"])}
    whole = {"rope_type": "default", **(more.pop("rope_scaling") or {})}
    ropes = {FULL: whole | {"rope_theta": more.pop("rope_theta")}, SLIDING: local}
    olmo3 = {"model_type": "olmo3", "rope_parameters": ropes}
    return more | _read_windows(facts, config) | olmo3


def _olmo_metadata(config: Config) -> dict[str, Any]:
    if config["model_type"] == "olmo2":
        return rotary_heads_metadata(config)
    windows = _window_metadata(config)
    if not windows:
        raise CheckpointError("an olmo3 model without sliding layers cannot be written as GGUF")
    return rotary_heads_metadata(_with_old_rope(config)) | windows


def _with_old_rope(config: Config) -> Config:
    """Flatten transformers 5's rope_parameters, which has one entry per layer type."""
    given = dict(config.get("rope_parameters") or {})
    if FULL not in given:
        return config
    whole, local = given[FULL], given.get(SLIDING) or {}
    if rope_type(local) != "default" or local.get("rope_theta") != whole.get("rope_theta"):
        raise CheckpointError("sliding layers with a rope of their own cannot be written as GGUF")
    return {**config, "rope_parameters": whole}


def _exaone_metadata(config: Config) -> dict[str, Any]:
    return rotary_heads_metadata(config) | _window_metadata(config)


OLMO2 = GgufArchitecture(
    name="olmo2",
    model_types={"olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM"},
    tensors=TENSORS,
    layer_tensors=_LAYER,
    keys=DECODER,
    fixed={"hidden_act": "silu", "attention_bias": False},
    more_config=_read_olmo,
    more_metadata=_olmo_metadata,
    factors=rope_factors,
    dropped=INVERSE_FREQUENCIES,
)
EXAONE4 = GgufArchitecture(
    name="exaone4",
    model_types={"exaone4": "Exaone4ForCausalLM"},
    tensors=TENSORS,
    layer_tensors=_LAYER,
    keys=DECODER,
    fixed={"hidden_act": "silu", "attention_bias": False},
    more_config=lambda facts, config: (
        read_rotary_heads(facts, config) | _read_windows(facts, config)
    ),
    more_metadata=_exaone_metadata,
    factors=rope_factors,
)
