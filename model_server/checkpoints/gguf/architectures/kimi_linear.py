"""Kimi Linear and GLM-5.3 Flash: delta networks that fade row by row, latent attention; only read.

Files hold -exp(A_log), and a layer's kind as its number of key heads. How many heads a delta
network has is the number of rows of its rates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, TensorPlace, place
from model_server.checkpoints.gguf.architectures.deepseek2 import (
    DEEPSEEK32,
    read_indexer,
    read_latent_heads,
)
from model_server.checkpoints.gguf.architectures.deepseek4 import MIXING, STREAMS, read_limit
from model_server.checkpoints.gguf.architectures.experts import (
    GROUPED,
    USED,
    has_shared,
    is_dense,
    is_sparse,
    only_sigmoid,
)
from model_server.checkpoints.gguf.architectures.lfm2 import key_heads
from model_server.checkpoints.gguf.architectures.llama import NORMS, TENSORS, feed_forward
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import DECODER, FULL
from sax.errors import CheckpointError

_LINEAR = "linear_attn_config"


def _attends(config: Config, layer: int) -> bool:
    return layer + 1 in config[_LINEAR]["full_attn_layers"]


def _fades(config: Config, layer: int) -> bool:
    return not _attends(config, layer)


def _low_rank(config: Config, layer: int) -> bool:
    return _attends(config, layer) and config["q_lora_rank"] is not None


def _full_rank(config: Config, layer: int) -> bool:
    return _fades(config, layer) or config["q_lora_rank"] is None


def _shared(config: Config, layer: int) -> bool:
    return is_sparse(config, layer) and bool(config["num_shared_experts"])


def fading(needed: Any, **decay: bool) -> dict[str, TensorPlace]:
    """Return the tensors of a delta network; decay: the place of its A_log."""
    name = "self_attn"
    low_rank = {"ssm_f_a": "f_a", "ssm_f_b": "f_b", "ssm_g_a": "g_a", "ssm_g_b": "g_b"}
    return {
        **{stem: place(f"{name}.{of}_proj", needed=needed) for stem, of in low_rank.items()},
        **{
            f"ssm_conv1d_{of}": place(f"{name}.{of}_conv1d", filters=True, needed=needed)
            for of in "qkv"
        },
        "attn_k": place(f"{name}.k_proj", needed=needed),
        "attn_v": place(f"{name}.v_proj", needed=needed),
        "ssm_a": place(f"{name}.A_log", decay=True, bare=True, needed=needed, **decay),
        "ssm_beta": place(f"{name}.b_proj", needed=needed),
        "ssm_dt.bias": place(f"{name}.dt_bias", needed=needed),
        "ssm_norm": place(f"{name}.o_norm", needed=needed),
    }


def _read_fading(facts: Facts, counts: list[int]) -> dict[str, Any]:
    """Return linear_attn_config; counts: key heads of each layer."""
    faded = [layer + 1 for layer, count in enumerate(counts) if not count]
    return {
        "full_attn_layers": [layer + 1 for layer, count in enumerate(counts) if count],
        "head_dim": facts.whole("kda.head_dim"),
        "kda_layers": faded,
        "num_heads": facts.rows(f"blk.{faded[0] - 1}.ssm_beta.weight") if faded else 1,
        "short_conv_kernel_size": facts.whole("ssm.conv_kernel"),
    }


def _read(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    return {
        **read_latent_heads(facts),
        _LINEAR: _read_fading(facts, key_heads(facts, config["num_hidden_layers"])),
        "num_key_value_heads": config["num_attention_heads"],
    }


_BLOCK = "block_sparse_moe"
KIMI_LINEAR = GgufArchitecture(
    name="kimi-linear",
    model_types={"kimi_linear": "KimiLinearForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **fading(_fades, wrapped=True),
        "attn_q": place("self_attn.q_proj", needed=_full_rank),
        "attn_q_a": place("self_attn.q_a_proj", needed=_low_rank),
        "attn_q_a_norm": place("self_attn.q_a_layernorm", needed=_low_rank),
        "attn_q_b": place("self_attn.q_b_proj", needed=_low_rank),
        "attn_kv_a_mqa": place("self_attn.kv_a_proj_with_mqa", needed=_attends),
        "attn_kv_a_norm": place("self_attn.kv_a_layernorm", needed=_attends),
        "attn_kv_b": place("self_attn.kv_b_proj", needed=_attends),
        "attn_output": place("self_attn.o_proj"),
        **feed_forward(needed=is_dense),
        "ffn_gate_inp": place(f"{_BLOCK}.gate", needed=is_sparse),
        "exp_probs_b.bias": place(f"{_BLOCK}.gate.e_score_correction_bias", needed=is_sparse),
        "ffn_gate_exps": place(f"{_BLOCK}.experts.{{e}}.w1", needed=is_sparse),
        "ffn_down_exps": place(f"{_BLOCK}.experts.{{e}}.w2", needed=is_sparse),
        "ffn_up_exps": place(f"{_BLOCK}.experts.{{e}}.w3", needed=is_sparse),
        **feed_forward(f"{_BLOCK}.shared_experts", "_shexp", needed=_shared),
    },
    keys=(
        *DECODER,
        Key("first_k_dense_replace", "leading_dense_block_count", default=0, least=0),
        Key("kv_lora_rank", "attention.kv_lora_rank"),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("moe_renormalize", "expert_weights_norm", bool, True),
        Key("num_expert_group", "expert_group_count", default=1),
        Key("num_experts", "expert_count"),
        Key("num_experts_per_token", "expert_used_count"),
        Key("num_shared_experts", "expert_shared_count", default=0, least=0),
        Key("q_lora_rank", "attention.q_lora_rank", default=None),
        Key("routed_scaling_factor", "expert_weights_scale", float, 1.0),
        Key("topk_group", "expert_group_used_count", default=1),
    ),
    fixed={"hidden_act": "silu", "mla_use_nope": True, "moe_layer_freq": 1},
    more_config=_read,
    # Nothing rotates; and sizes of the latent as if it were a head.
    ignored=("attention.key_length", "attention.value_length", "rope.freq_base"),
    split_kv_b=True,
)


# --- GLM-5.3 Flash

_POOLED = "attention.indexer.kpool"


def _read_glm5(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    _check_glm5(facts)
    layers = config["num_hidden_layers"]
    counts = key_heads(facts, layers)
    own = facts.listed("attention.indexer.types", layers, [True] * layers)
    return {
        **read_indexer(facts),
        "attention_bias": any(name.endswith("attn_kv_a_mqa.bias") for name in facts.tensors),
        "index_kpool": facts.whole(_POOLED),
        "indexer_types": ["full" if its else "shared" for its in own],
        "layer_types": [FULL if count else "linear_attention" for count in counts],
        _LINEAR: _read_fading(facts, counts) | {"gate_lower_bound": _bound(facts)},
        "num_key_value_heads": config["num_attention_heads"],
        "qk_nope_head_dim": facts.whole("attention.key_length_mla"),
        "qk_rope_head_dim": 0,
        "swiglu_limit": read_limit(facts, layers),
        "v_head_dim": facts.whole("attention.value_length_mla"),
    }


def _check_glm5(facts: Facts) -> None:
    """Raise CheckpointError for what the family does not compute."""
    if not facts.flag(f"{_POOLED}_select_tail", True):
        raise CheckpointError(f"its {_POOLED}_select_tail is false; supported is true")
    if (epsilon := facts.get("attention.layer_norm_epsilon", 1e-6)) != 1e-6:
        raise CheckpointError(f"its attention.layer_norm_epsilon is {epsilon}; supported is 1e-6")
    if rotated := facts.get("rope.dimension_count", 0):
        raise CheckpointError(f"it rotates {rotated} dimensions of its heads; supported is none")


def _bound(facts: Facts) -> float | None:
    found = facts.get("kda.gate_lower_bound")
    if found is not None and (type(found) is not float or not found < 0):
        raise CheckpointError(f"its kda.gate_lower_bound is {found!r}, not a number below 0")
    return found


def _glm_chooses(config: Config, layer: int) -> bool:
    return _attends(config, layer) and config["indexer_types"][layer] == "full"


_LATENT = ("attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_kv_b")
_POOLS = "self_attn.indexer.index_kpool_compress"
_CHOICE = {
    **{
        stem: replace(at, needed=_glm_chooses)
        for stem, at in DEEPSEEK32.layer_tensors.items()
        if stem.startswith("indexer.")
    },
    "indexer_compressor_ape.weight": place(f"{_POOLS}_ape", needed=_glm_chooses),
    "indexer_compressor_gate.weight": place(f"{_POOLS}_gate", needed=_glm_chooses),
}
GLM5_NEXT = GgufArchitecture(
    name="glm5-next",
    model_types={"glm5_next_text": "Glm5NextForConditionalGeneration"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **STREAMS,
        **fading(_fades, flat=True),
        "attn_q": place("self_attn.q_proj", needed=_fades),
        "attn_output": place("self_attn.o_proj"),
        **{stem: replace(DEEPSEEK32.layer_tensors[stem], needed=_attends) for stem in _LATENT},
        **_CHOICE,
        **feed_forward(needed=is_dense),
        "ffn_gate_inp": place("mlp.gate", needed=is_sparse),
        "exp_probs_b.bias": place("mlp.gate.e_score_correction_bias", needed=is_sparse),
        **feed_forward("mlp.experts.{e}", "_exps", needed=is_sparse),
        **feed_forward("mlp.shared_experts", "_shexp", needed=has_shared),
    },
    keys=(
        *DECODER,
        *GROUPED,
        USED,
        *MIXING,
        Key("kv_lora_rank", "attention.kv_lora_rank"),
        Key("n_routed_experts", "expert_count"),
        Key("n_shared_experts", "expert_shared_count", default=0, least=0),
        Key("q_lora_rank", "attention.q_lora_rank"),
    ),
    fixed={"hidden_act": "silu", "moe_layer_freq": 1},
    more_config=_read_glm5,
    ignored=("attention.key_length", "attention.value_length"),
    split_kv_b=True,
)
