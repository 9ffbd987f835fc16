"""DeepSeek-V4 and Hy4, whose layers read and write several residual streams; only read.

DeepSeek-V4 has a window beside compressed entries. Its table that names the experts of a token is
of whole numbers; its experts are MXFP4 in the files of llama.cpp's converter, as they are
published. Hy4 is DeepSeek's latent attention to chosen tokens, with gates and sinks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    JoinedPlace,
    TensorPlace,
    place,
)
from model_server.checkpoints.gguf.architectures.deepseek2 import (
    DEEPSEEK2,
    DEEPSEEK32,
    read_indexer,
    read_latent_heads,
)
from model_server.checkpoints.gguf.architectures.experts import (
    has_shared,
    is_dense,
    is_sparse,
    only_sigmoid,
)
from model_server.checkpoints.gguf.architectures.llama import NORMS, TENSORS
from model_server.checkpoints.gguf.facts import REQUIRED, Facts, Key
from model_server.checkpoints.gguf.heads import RMS_EPS, SIZES, WINDOW
from model_server.checkpoints.gguf.rope import read_rope
from sax.errors import CheckpointError

_SQRT_SOFTPLUS = 4  # expert_gating_func
_CHOSEN = 4  # tokens of an entry where an indexer chooses


def _compresses(config: Config, layer: int) -> bool:
    return config["compress_ratios"][layer] > 0


def _chooses(config: Config, layer: int) -> bool:
    return config["compress_ratios"][layer] == _CHOSEN


def _hashed(config: Config, layer: int) -> bool:
    return layer < config["num_hash_layers"]


def _scored(config: Config, layer: int) -> bool:
    return not _hashed(config, layer)


def _read(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    if (kind := facts.get("expert_gating_func", _SQRT_SOFTPLUS)) != _SQRT_SOFTPLUS:
        raise CheckpointError(f"its expert_gating_func is {kind!r}; supported is {_SQRT_SOFTPLUS}")
    layers, size = config["num_hidden_layers"], facts.whole("attention.key_length")
    if facts.whole("attention.value_length", size) != size:
        raise CheckpointError("its keys and values have heads of different sizes")
    rotated = facts.whole("rope.dimension_count")
    return {
        **read_rope(facts, rotated),
        "compress_ratios": facts.listed("attention.compress_ratios", layers),
        "head_dim": size,
        "num_key_value_heads": 1,
        "qk_rope_head_dim": rotated,
        "swiglu_limit": read_limit(facts, layers),
    }


_LIMITS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")


def read_limit(facts: Facts, layers: int, keys: tuple[str, ...] = _LIMITS) -> float:
    """Return the bound of gates, which all layers share. Raises CheckpointError."""
    found = [number for key in keys for number in facts.listed(key, layers)]
    if len(set(found)) != 1 or type(found[0]) is not float:
        raise CheckpointError(f"its {' and '.join(keys)} are {found}, not alike")
    return float(f"{found[0]:.7g}")  # the decimal that the writer meant


def _compressor(name: str, stem: str, needed: Any) -> dict[str, Any]:
    return {
        f"{stem}_compressor_ape.weight": place(f"{name}.ape", needed=needed),
        f"{stem}_compressor_gate": place(f"{name}.wgate", needed=needed),
        f"{stem}_compressor_kv": place(f"{name}.wkv", needed=needed),
        f"{stem}_compressor_norm": place(f"{name}.norm", needed=needed),
    }


_PARTS = ("base", "fn", "scale")
STREAMS = {
    f"hc_{half}_{part}.weight": place(f"hc_{half}_{part}")
    for half in ("attn", "ffn")
    for part in _PARTS
}
MIXING = (
    Key("hc_eps", "hyper_connection.epsilon", float),
    Key("hc_mult", "hyper_connection.count"),
    Key("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"),
)
_EXPERT = {"gate": "w1", "down": "w2", "up": "w3"}
DEEPSEEK4 = GgufArchitecture(
    name="deepseek4",
    model_types={"deepseek_v4": "DeepseekV4ForCausalLM"},
    tensors={
        "token_embd": place("embed"),
        "output_norm": place("norm"),
        "output": place("head"),
        **{f"output_hc_{part}.weight": place(f"hc_head_{part}") for part in _PARTS},
    },
    layer_tensors={
        "attn_norm": place("attn_norm"),
        "ffn_norm": place("ffn_norm"),
        **STREAMS,
        "attn_sinks.weight": place("attn.attn_sink"),
        "attn_q_a": place("attn.wq_a"),
        "attn_q_a_norm": place("attn.q_norm"),
        "attn_q_b": place("attn.wq_b"),
        "attn_kv": place("attn.wkv"),
        "attn_kv_a_norm": place("attn.kv_norm"),
        "attn_output_a": place("attn.wo_a"),
        "attn_output_b": place("attn.wo_b"),
        **_compressor("attn.compressor", "attn", _compresses),
        **_compressor("attn.indexer.compressor", "indexer", _chooses),
        "indexer.proj": place("attn.indexer.weights_proj", needed=_chooses),
        "indexer.attn_q_b": place("attn.indexer.wq_b", needed=_chooses),
        "ffn_gate_inp": place("ffn.gate"),
        "ffn_gate_tid2eid.weight": place("ffn.gate.tid2eid", whole=True, needed=_hashed),
        "exp_probs_b.bias": place("ffn.gate.bias", needed=_scored),
        **{f"ffn_{of}_exps": place(f"ffn.experts.{{e}}.{w}") for of, w in _EXPERT.items()},
        **{f"ffn_{of}_shexp": place(f"ffn.shared_experts.{w}") for of, w in _EXPERT.items()},
    },
    layers="layers",
    keys=(
        *SIZES,
        RMS_EPS,
        Key("compress_rope_theta", "attention.compress_rope_freq_base", float),
        *MIXING,
        Key("index_head_dim", "attention.indexer.key_length"),
        Key("index_n_heads", "attention.indexer.head_count"),
        Key("index_topk", "attention.indexer.top_k"),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("n_routed_experts", "expert_count"),
        Key("n_shared_experts", "expert_shared_count"),
        Key("norm_topk_prob", "expert_weights_norm", bool, True),
        Key("num_experts_per_tok", "expert_used_count"),
        Key("num_hash_layers", "hash_layer_count", default=0, least=0),
        Key("o_groups", "attention.output_group_count"),
        Key("o_lora_rank", "attention.output_lora_rank"),
        Key("q_lora_rank", "attention.q_lora_rank"),
        Key("routed_scaling_factor", "expert_weights_scale", float, 1.0),
        Key("sliding_window", WINDOW),
    ),
    fixed={"hidden_act": "silu", "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc"},
    more_config=_read,
    # All heads share one vector; and a row has all streams.
    ignored=("attention.head_count_kv", "embedding_length_out"),
    usual=lambda name: name.replace(".attn.norm.", ".attn.kv_norm."),
)


# --- Hy4


def _chooses_own(config: Config, layer: int) -> bool:
    return config["indexer_types"][layer] == "full"


def _read_hy4(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    layers, heads = config["num_hidden_layers"], read_latent_heads(facts)
    own = facts.listed("attention.indexer.types", layers)
    return {
        **heads,
        **read_indexer(facts),
        **read_rope(facts, heads["qk_rope_head_dim"]),
        "attention_bias": facts.has("blk.0.attn_output.bias"),
        "indexer_types": ["full" if its else "shared" for its in own],
        "num_key_value_heads": config["num_attention_heads"],
        "swiglu_limit": read_limit(facts, layers, _LIMITS[:1]),  # not of the expert all tokens use
    }


def _gated(name: str, suffix: str = "", **rest: Any) -> dict[str, TensorPlace]:
    """Return the matrices of a gated feed-forward, by transformers' names."""
    parts = {"gate": "linear_gate", "up": "up_proj", "down": "down_proj"}
    return {f"ffn_{of}{suffix}": place(f"{name}.{its}", **rest) for of, its in parts.items()}


_LATENT = ("attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_kv_b")
_HY4_STREAMS = {
    f"hc_{half}_{part}.weight": place(f"hc_pre.hc_{name}_layer.hc_{part}")
    for half, name in (("attn", "attn"), ("ffn", "mlp"))
    for part in _PARTS
}
HY_V4 = GgufArchitecture(
    name="hy_v4",
    model_types={"hy_v4": "HYV4ForCausalLM"},
    tensors={
        **TENSORS,
        **{
            f"output_hc_{part}.weight": place(f"model.hc_pre.hc_head.hc_head_{part}")
            for part in _PARTS
        },
    },
    layer_tensors={
        **NORMS,
        **_HY4_STREAMS,
        **{stem: DEEPSEEK32.layer_tensors[stem] for stem in _LATENT},
        "attn_gate": place("self_attn.linear_gate"),
        "attn_output": place("self_attn.o_proj"),
        "attn_sinks.weight": place("self_attn.learnable_sink_param"),
        **{
            stem: replace(at, needed=_chooses_own)
            for stem, at in DEEPSEEK32.layer_tensors.items()
            if stem.startswith("indexer.")
        },
        **_gated("mlp", needed=is_dense),
        "ffn_gate_inp": place("mlp.gate", needed=is_sparse),
        "exp_probs_b.bias": place("mlp.gate.e_score_correction_bias", needed=is_sparse),
        **_gated("mlp.shared_experts", "_shexp", needed=has_shared),
    },
    joined=(
        JoinedPlace(
            name="mlp.experts.gate_up_proj",
            parts=("ffn_gate_exps.weight", "ffn_up_exps.weight"),
            needed=is_sparse,
        ),
        JoinedPlace(
            name="mlp.experts.down_proj", parts=("ffn_down_exps.weight",), needed=is_sparse
        ),
    ),
    keys=(
        *(replace(key, default=REQUIRED) if key.default is None else key for key in DEEPSEEK2.keys),
        *MIXING[:2],
        Key("hc_magnitude", "hyper_connection.magnitude", float),
        Key("n_group", "expert_group_count", default=1),
        Key("topk_group", "expert_group_used_count", default=1),
    ),
    fixed={"hidden_act": "silu"},
    more_config=_read_hy4,
    ignored=DEEPSEEK2.ignored,
    split_kv_b=True,
)
