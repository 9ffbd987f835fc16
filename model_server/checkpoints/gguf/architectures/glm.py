"""GLM-4 and GLM-4-0414; GLM-4.5, dots.llm1, K-EXAONE, Hy3, Trinity, Sarvam 30B: with experts.

GLM-4 keeps the first matrices of the feed-forward fused, and a part of each head rotates, in
neighbouring dimensions as in llama.cpp, so rows are as published. The others have dense layers
first, then experts chosen by sigmoids; they are read as llama.cpp's converter writes them, and not
written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    TensorPlace,
    optional,
    place,
)
from model_server.checkpoints.gguf.architectures.experts import (
    GROUPED,
    SILU,
    USED,
    biases,
    has_shared,
    is_dense,
    is_sparse,
    only_sigmoid,
    read_sigmoid,
)
from model_server.checkpoints.gguf.architectures.llama import (
    HEAD_NORMS,
    NORMS,
    PROJECTIONS,
    TENSORS,
    feed_forward,
)
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    DECODER,
    FFW,
    FULL,
    WINDOW,
    read_layer_types,
    read_window,
)
from model_server.checkpoints.gguf.rope import partly_rotated_metadata, read_partly_rotated
from sax.errors import CheckpointError

_GLM4_LAYER: Mapping[str, TensorPlace] = {
    **NORMS,
    **PROJECTIONS,
    "ffn_up": place("mlp.gate_up_proj"),
    "ffn_down": place("mlp.down_proj"),
}


def _read_glm4(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = read_partly_rotated(facts, config)
    return more | {"attention_bias": facts.has("blk.0.attn_q.bias")}


def _glm4_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    return partly_rotated_metadata(config, 0.5)


CHATGLM = GgufArchitecture(
    name="chatglm",
    model_types={"glm": "GlmForCausalLM"},
    tensors=TENSORS,
    layer_tensors=_GLM4_LAYER,
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_read_glm4,
    more_metadata=_glm4_metadata,
)
GLM4 = GgufArchitecture(
    name="glm4",
    model_types={"glm4": "Glm4ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **_GLM4_LAYER,
        "post_attention_norm": place("post_self_attn_layernorm"),
        "post_ffw_norm": place("post_mlp_layernorm"),
    },
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_read_glm4,
    more_metadata=_glm4_metadata,
)


_GLM_LAYER: Mapping[str, TensorPlace] = {
    **PROJECTIONS,
    **feed_forward(needed=is_dense),
    "attn_norm": place("input_layernorm"),
    "ffn_gate_inp": place("mlp.gate", needed=is_sparse),
    "exp_probs_b.bias": place("mlp.gate.e_score_correction_bias", needed=is_sparse),
    **feed_forward("mlp.experts.{e}", "_exps", needed=is_sparse),
    **feed_forward("mlp.shared_experts", "_shexp", needed=has_shared),
}
_OPTIONAL_NORMS = {stem: place(at.name, needed=optional) for stem, at in HEAD_NORMS.items()}
_ROUTED = (
    *DECODER,
    *GROUPED,
    USED,
    Key("n_routed_experts", "expert_count"),
    Key("n_shared_experts", "expert_shared_count", default=0, least=0),
)


def _read_glm4moe(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    normed = facts.has("blk.0.attn_q_norm.weight")
    return read_partly_rotated(facts, config) | biases(facts) | {"use_qk_norm": normed}


GLM4MOE = GgufArchitecture(
    name="glm4moe",
    model_types={"glm4_moe": "Glm4MoeForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **_GLM_LAYER,
        **_OPTIONAL_NORMS,
        "post_attention_norm": place("post_attention_layernorm"),
    },
    # Solar Open, of which every layer has experts, names no width of dense ones.
    keys=(*(key for key in _ROUTED if key != FFW), replace(FFW, default=1)),
    fixed=SILU,
    more_config=_read_glm4moe,
)
DOTS1 = GgufArchitecture(
    name="dots1",
    model_types={"dots1": "Dots1ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={**_GLM_LAYER, **HEAD_NORMS, "ffn_norm": NORMS["ffn_norm"]},
    keys=_ROUTED,
    fixed={**SILU, "sliding_window": None},
    more_config=read_sigmoid,
)


def _read_exaone(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    window, layers = read_window(facts), config["num_hidden_layers"]
    kinds = read_layer_types(facts, layers, 4) if window else [FULL] * layers
    first = config.pop("first_k_dense_replace")
    return {
        **read_sigmoid(facts, config),
        "is_moe_layer": [layer >= first for layer in range(layers)],
        "first_k_dense_replace": first,
        "layer_types": kinds,
        "sliding_window": window,
    }


EXAONE_MOE = GgufArchitecture(
    name="exaone-moe",
    model_types={"exaone_moe": "ExaoneMoeForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **_GLM_LAYER,
        **HEAD_NORMS,
        "ffn_norm": NORMS["ffn_norm"],
        "exp_probs_b.bias": place("mlp.e_score_correction_bias", needed=is_sparse),
    },
    keys=(
        *_ROUTED[:-2],
        Key("num_experts", "expert_count"),
        Key("num_shared_experts", "expert_shared_count", default=0, least=0),
    ),
    fixed=SILU,
    more_config=_read_exaone,
    ignored=("expert_shared_feed_forward_length",),  # as expert_feed_forward_length
)


def _read_hy3(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    layers = range(config["num_hidden_layers"])
    dense = [layer for layer in layers if facts.has(f"blk.{layer}.ffn_gate.weight")]
    if dense != list(range(len(dense))):
        raise CheckpointError(f"its layers {dense} are dense; only the first ones may be")
    if not facts.flag("expert_weights_norm", True):
        raise CheckpointError("its shares of experts do not add up to 1 (expert_weights_norm)")
    return read_sigmoid(facts, config) | {"first_k_dense_replace": len(dense)}


HY_V3 = GgufArchitecture(
    name="hy_v3",
    model_types={"hy_v3": "HYV3ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        **HEAD_NORMS,
        **feed_forward(needed=optional),
        "ffn_gate_inp": place("mlp.router.gate", needed=optional),
        "exp_probs_b": place("mlp.expert_bias", bare=True, needed=optional),
        **feed_forward("mlp.experts.{e}", "_exps", needed=optional),
        **feed_forward("mlp.shared_mlp", "_shexp", needed=optional),
    },
    keys=(
        *DECODER,
        Key("num_experts", "expert_count"),
        USED,
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("router_scaling_factor", "expert_weights_scale", float, 1.0),
    ),
    fixed={**SILU, "num_shared_experts": 1},
    more_config=_read_hy3,
    ignored=("expert_shared_feed_forward_length",),
)


def _trinity_sparse(config: Config, layer: int) -> bool:
    return layer >= config["num_dense_layers"]


def _trinity_dense(config: Config, layer: int) -> bool:
    return not _trinity_sparse(config, layer)


def _trinity_shared(config: Config, layer: int) -> bool:
    return _trinity_sparse(config, layer) and bool(config["num_shared_experts"])


def _read_trinity(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    """Embeddings are scaled and every fourth layer sees everything: files take both for granted."""
    layers = config["num_hidden_layers"]
    return read_sigmoid(facts, config) | {
        "layer_types": read_layer_types(facts, layers, 4),
        "mup_enabled": True,
        "sliding_window": facts.whole(WINDOW),
    }


AFMOE = GgufArchitecture(
    name="afmoe",
    model_types={"afmoe": "AfmoeForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **PROJECTIONS,
        **HEAD_NORMS,
        "attn_gate": place("self_attn.gate_proj"),
        "attn_norm": place("input_layernorm"),
        "post_attention_norm": place("post_attention_layernorm"),
        "ffn_norm": place("pre_mlp_layernorm"),
        "post_ffw_norm": place("post_mlp_layernorm"),
        **feed_forward(needed=_trinity_dense),
        "ffn_gate_inp": place("mlp.router.gate", needed=_trinity_sparse),
        "exp_probs_b.bias": place("mlp.expert_bias", bare=True, needed=_trinity_sparse),
        **feed_forward("mlp.experts.{e}", "_exps", needed=_trinity_sparse),
        **feed_forward("mlp.shared_experts", "_shexp", needed=_trinity_shared),
    },
    keys=(
        *DECODER,
        USED,
        Key("num_experts", "expert_count"),
        Key("num_shared_experts", "expert_shared_count", default=0, least=0),
        Key("num_dense_layers", "leading_dense_block_count", default=0, least=0),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("route_scale", "expert_weights_scale", float, 1.0),
        Key("route_norm", "expert_weights_norm", bool, True),
        Key("num_expert_groups", "expert_group_count", default=1),
        Key("num_limited_groups", "expert_group_used_count", default=1),
    ),
    fixed={**SILU, "score_func": "sigmoid"},
    more_config=_read_trinity,
)


def _read_sarvam(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    """Files of Ling 2 have this name, too: half of each of their heads rotates."""
    only_sigmoid(facts)
    found = read_partly_rotated(facts, config)
    if found.pop("partial_rotary_factor") != 1:
        raise CheckpointError("part of each head rotates: a Ling 2, of which no family is served")
    return found


SARVAM = GgufArchitecture(
    name="bailingmoe2",
    model_types={"sarvam_moe": "SarvamMoEForCausalLM"},
    tensors={**TENSORS, "token_embd": place("model.word_embeddings")},
    layer_tensors={
        **NORMS,
        "attn_qkv": place("attention.query_key_value"),
        "attn_q_norm": place("attention.query_layernorm"),
        "attn_k_norm": place("attention.key_layernorm"),
        "attn_output": place("attention.dense"),
        **feed_forward(needed=is_dense),
        "ffn_gate_inp": place("mlp.gate", needed=is_sparse),
        # Less its mean, which changes no choice.
        "exp_probs_b.bias": place("mlp.gate.expert_bias", needed=is_sparse),
        **feed_forward("mlp.experts.{e}", "_exps", needed=is_sparse),
        **feed_forward("mlp.shared_experts", "_shexp", needed=has_shared),
    },
    keys=_ROUTED,
    fixed=SILU,
    more_config=_read_sarvam,
    ignored=("expert_shared_feed_forward_length",),  # all of them as wide as an expert each
)
ALL = (GLM4MOE, DOTS1, EXAONE_MOE, HY_V3, AFMOE, SARVAM)
