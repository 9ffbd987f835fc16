"""Decoders of routed experts, as llama.cpp's converter writes their files.

Qwen2-MoE, OLMoE, Phi-3.5-MoE, ERNIE 4.5, Hunyuan-A13B, Command A+ and Llama 4 are read and not
written; what a file does not say is what the published models have. gpt-oss, with attention sinks,
is also written if the checkpoint has its experts apart: Hugging Face's folders hold gates and ups
of all experts in one tensor, which has no name here.
"""

from __future__ import annotations

from typing import Any

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    JoinedPlace,
    optional,
    place,
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
    FFW,
    FULL,
    SIZES,
    layer_types,
    read_heads,
    read_layer_types,
    read_window,
    window_metadata,
)
from model_server.checkpoints.gguf.rope import (
    read_longrope,
    read_rotary_heads,
    rotary_heads_metadata,
)
from sax.errors import CheckpointError

_SIGMOID = 2  # expert_gating_func
SILU = {"hidden_act": "silu"}
_EXPERTS = feed_forward("mlp.experts.{e}", "_exps")
USED = Key("num_experts_per_tok", "expert_used_count")
GROUPED = (
    Key("n_group", "expert_group_count", default=1),
    Key("topk_group", "expert_group_used_count", default=1),
    Key("routed_scaling_factor", "expert_weights_scale", float, 1.0),
    Key("norm_topk_prob", "expert_weights_norm", bool, True),
    Key("first_k_dense_replace", "leading_dense_block_count", default=0, least=0),
    Key("moe_intermediate_size", "expert_feed_forward_length"),
)


def is_sparse(config: Config, layer: int) -> bool:
    kinds = config.get("mlp_layer_types")
    return kinds[layer] == "sparse" if kinds else layer >= config["first_k_dense_replace"]


def is_dense(config: Config, layer: int) -> bool:
    return not is_sparse(config, layer)


def has_shared(config: Config, layer: int) -> bool:
    return is_sparse(config, layer) and bool(config.get("n_shared_experts"))


def read_sparse(facts: Facts, layers: int) -> list[str]:
    """Return the kind of each layer, by whether it has a router."""
    routed = (facts.has(f"blk.{layer}.ffn_gate_inp.weight") for layer in range(layers))
    return ["sparse" if its else "dense" for its in routed]


def biases(facts: Facts) -> dict[str, Any]:
    return {"attention_bias": facts.has("blk.0.attn_q.bias")}


def only_sigmoid(facts: Facts) -> None:
    """Raise CheckpointError if experts are not chosen by the sigmoid of their scores."""
    if (kind := facts.get("expert_gating_func", _SIGMOID)) != _SIGMOID:
        raise CheckpointError(f"its expert_gating_func is {kind!r}; supported is {_SIGMOID}")


def only_shares(facts: Facts) -> None:
    """Raise CheckpointError if they are not, or if their shares need not add up to 1."""
    only_sigmoid(facts)
    if not facts.flag("expert_weights_norm", True):
        raise CheckpointError("its expert_weights_norm is false; supported is true")


def read_decoder(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    return read_rotary_heads(facts, config) | biases(facts)


def read_sigmoid(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    return read_decoder(facts, config)


# --- Qwen, OLMoE, Phi


def _read_qwen2moe(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    biased = facts.has("blk.0.attn_q.bias")
    return read_rotary_heads(facts, config) | {"qkv_bias": biased, "use_sliding_window": False}


QWEN2MOE = GgufArchitecture(
    name="qwen2moe",
    model_types={"qwen2_moe": "Qwen2MoeForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        "ffn_gate_inp": place("mlp.gate"),
        **_EXPERTS,
        **feed_forward("mlp.shared_expert", "_shexp"),
        "ffn_gate_inp_shexp": place("mlp.shared_expert_gate"),
    },
    keys=(
        *DECODER,
        Key("num_experts", "expert_count"),
        USED,
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        Key("norm_topk_prob", "expert_weights_norm", bool, False),
    ),
    fixed={**SILU, "decoder_sparse_step": 1, "mlp_only_layers": []},
    more_config=_read_qwen2moe,
)
OLMOE = GgufArchitecture(
    name="olmoe",
    model_types={"olmoe": "OlmoeForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        **HEAD_NORMS,
        "ffn_gate_inp": place("mlp.gate"),
        **_EXPERTS,
    },
    keys=(
        *DECODER,
        Key("num_experts", "expert_count"),
        USED,
        Key("norm_topk_prob", "expert_weights_norm", bool, False),
    ),
    fixed=SILU,
    more_config=read_decoder,
)


def _read_phimoe(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    heads = read_heads(facts, config)
    context = config["max_position_embeddings"]
    return {
        **heads,
        **read_longrope(facts, heads["head_dim"], context),
        **biases(facts),
        "lm_head_bias": facts.has("output.bias"),
        "router_jitter_noise": 0.01,
        "sliding_window": read_window(facts),
    }


_PHI_EXPERT = "block_sparse_moe.experts.{e}"
PHIMOE = GgufArchitecture(
    name="phimoe",
    model_types={"phimoe": "PhimoeForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        "ffn_gate_inp": place("block_sparse_moe.gate"),
        "ffn_gate_exps": place(f"{_PHI_EXPERT}.w1"),
        "ffn_down_exps": place(f"{_PHI_EXPERT}.w2"),
        "ffn_up_exps": place(f"{_PHI_EXPERT}.w3"),
    },
    keys=(*DECODER, Key("num_local_experts", "expert_count"), USED),
    fixed=SILU,
    more_config=_read_phimoe,
)

# --- ERNIE, Hunyuan, Command A+


def _ernie_sparse(config: Config, layer: int) -> bool:
    step, first = config["moe_layer_interval"], config["moe_layer_start_index"]
    return (layer + 1) % step == 0 and layer >= first


def _ernie_dense(config: Config, layer: int) -> bool:
    return not _ernie_sparse(config, layer)


def _ernie_shared(config: Config, layer: int) -> bool:
    return _ernie_sparse(config, layer) and bool(config["moe_num_shared_experts"])


ERNIE4_5_MOE = GgufArchitecture(
    name="ernie4_5-moe",
    model_types={"ernie4_5_moe": "Ernie4_5_MoeForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        **feed_forward(needed=_ernie_dense),
        "ffn_gate_inp": place("mlp.gate", needed=_ernie_sparse),
        "exp_probs_b.bias": place("mlp.moe_statics.e_score_correction_bias", needed=_ernie_sparse),
        **feed_forward("mlp.experts.{e}", "_exps", needed=_ernie_sparse),
        **feed_forward("mlp.shared_experts", "_shexp", needed=_ernie_shared),
    },
    keys=(
        *DECODER,
        Key("moe_num_experts", "expert_count"),
        Key("moe_k", "expert_used_count"),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("moe_num_shared_experts", "expert_shared_count", default=0, least=0),
        Key("moe_layer_interval", "interleave_moe_layer_step", default=1),
        Key("moe_layer_start_index", "leading_dense_block_count", default=0, least=0),
    ),
    fixed={**SILU, "use_bias": False, "moe_layer_end_index": -1},
    more_config=read_rotary_heads,
    # Of an expert, where the shared ones are that wide together.
    ignored=("expert_shared_feed_forward_length",),
)
HUNYUAN_MOE = GgufArchitecture(
    name="hunyuan-moe",
    model_types={"hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        "attn_q_norm": place("self_attn.query_layernorm"),
        "attn_k_norm": place("self_attn.key_layernorm"),
        "ffn_gate_inp": place("mlp.gate.wg"),
        **_EXPERTS,
        **feed_forward("mlp.shared_mlp", "_shexp"),
    },
    keys=(
        *DECODER,
        Key("num_experts", "expert_count"),
        Key("moe_topk", "expert_used_count"),
        Key("num_shared_expert", "expert_shared_count", default=1),
    ),
    fixed={**SILU, "mlp_bias": False, "use_cla": False, "use_qk_norm": True},
    more_config=read_decoder,
    ignored=("expert_feed_forward_length", "expert_shared_feed_forward_length"),
)


def _read_cohere2moe(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    layers, window = config["num_hidden_layers"], read_window(facts)
    return {
        **read_decoder(facts, config),
        "layer_types": read_layer_types(facts, layers, 4) if window else [FULL] * layers,
        "sliding_window": window or 4096,
        # Files have the width of the dense layers here, and that of experts under its own key.
        "prefix_dense_intermediate_size": config["intermediate_size"],
        "intermediate_size": facts.whole("expert_feed_forward_length"),
    }


COHERE2MOE = GgufArchitecture(
    name="cohere2moe",
    model_types={"cohere2_moe": "Cohere2MoeForCausalLM"},
    tensors={key: TENSORS[key] for key in ("token_embd", "output_norm")},
    layer_tensors={
        **PROJECTIONS,
        "attn_norm": place("input_layernorm"),
        **feed_forward(needed=is_dense),
        "ffn_gate_inp": place("mlp.gate", needed=is_sparse),
        **feed_forward("mlp.experts.{e}", "_exps", needed=is_sparse),
        **feed_forward("mlp.shared_experts", "_shexp", needed=optional),
    },
    keys=(
        *SIZES,
        FFW,
        Key("layer_norm_eps", "attention.layer_norm_epsilon", float, 1e-5),
        Key("logit_scale", "logit_scale", float, 0.0625),
        Key("num_experts", "expert_count"),
        USED,
        Key("num_shared_experts", "expert_shared_count", default=0, least=0),
        Key("norm_topk_prob", "expert_weights_norm", bool, True),
        Key("first_k_dense_replace", "leading_dense_block_count", default=0, least=0),
    ),
    fixed={**SILU, "tie_word_embeddings": True, "expert_selection_fn": "sigmoid"},
    more_config=_read_cohere2moe,
    ignored=("expert_shared_feed_forward_length",),
)

# --- Llama 4


def _llama4_sparse(config: Config, layer: int) -> bool:
    return (layer + 1) % config["interleave_moe_layer_step"] == 0


def _llama4_dense(config: Config, layer: int) -> bool:
    return not _llama4_sparse(config, layer)


def _read_llama4(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    return {
        **read_decoder(facts, config),
        "intermediate_size_mlp": config["intermediate_size"],
        "intermediate_size": facts.whole("expert_feed_forward_length"),
        "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(layers)],
        # llama.cpp fixes these, as the published models have them.
        "attention_chunk_size": read_window(facts) or 8192,
        "attn_temperature_tuning": True,
        "attn_scale": 0.1,
        "floor_scale": 8192,
        "use_qk_norm": config["num_local_experts"] != 128,  # as Maverick has
    }


LLAMA4 = GgufArchitecture(
    name="llama4",
    model_types={"llama4_text": "Llama4ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        **feed_forward("feed_forward", needed=_llama4_dense),
        "ffn_gate_inp": place("feed_forward.router", needed=_llama4_sparse),
        **feed_forward("feed_forward.shared_expert", "_shexp", needed=_llama4_sparse),
    },
    joined=(
        JoinedPlace(
            name="feed_forward.experts.gate_up_proj",
            parts=("ffn_gate_exps.weight", "ffn_up_exps.weight"),
            transposed=True,
            needed=_llama4_sparse,
        ),
        JoinedPlace(
            name="feed_forward.experts.down_proj",
            parts=("ffn_down_exps.weight",),
            transposed=True,
            needed=_llama4_sparse,
        ),
    ),
    keys=(
        *DECODER,
        Key("num_local_experts", "expert_count"),
        USED,
        Key("interleave_moe_layer_step", "interleave_moe_layer_step", default=1),
    ),
    fixed=SILU,
    more_config=_read_llama4,
    dropped=INVERSE_FREQUENCIES,
)
_PERIOD = 2  # of the layers, from the second on, that see everything


def _read_gpt_oss(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = read_rotary_heads(facts, config)
    if more["rope_scaling"]:
        more["rope_scaling"] |= {"truncate": False}  # as published; files do not say it
    return more | {
        "sliding_window": read_window(facts),
        "layer_types": read_layer_types(facts, config["num_hidden_layers"], _PERIOD),
    }


def _gpt_oss_metadata(config: Config) -> dict[str, Any]:
    kinds = config.get("layer_types") or layer_types(config["num_hidden_layers"], _PERIOD)
    window = window_metadata(config.get("sliding_window", 128), kinds, _PERIOD)
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    scaling = {key: value for key, value in given.items() if key != "truncate"}
    plain = {**config, "rope_scaling": scaling, "rope_parameters": None}
    return rotary_heads_metadata(plain) | window


GPT_OSS = GgufArchitecture(
    name="gpt-oss",
    model_types={"gpt_oss": "GptOssForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **PROJECTIONS,
        "attn_norm": place("input_layernorm"),
        "attn_sinks.weight": place("self_attn.sinks"),
        "post_attention_norm": place("post_attention_layernorm"),
        "ffn_gate_inp": place("mlp.router"),
        **feed_forward("mlp.experts.{e}", "_exps"),
    },
    keys=(
        *DECODER,
        Key("num_local_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
    ),
    fixed={
        "attention_bias": True,
        "experts_apart": True,
        "hidden_act": "silu",
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
    more_config=_read_gpt_oss,
    more_metadata=_gpt_oss_metadata,
    ignored=("expert_feed_forward_length",),  # as feed_forward_length
    dropped=INVERSE_FREQUENCIES,
)


ALL = (
    QWEN2MOE,
    OLMOE,
    PHIMOE,
    ERNIE4_5_MOE,
    HUNYUAN_MOE,
    COHERE2MOE,
    LLAMA4,
)
