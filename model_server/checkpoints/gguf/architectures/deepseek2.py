"""DeepSeek V2, V3 and V3.2, GLM-4.7-Flash, GLM-5, Youtu-LLM, Dots 3: latent attention and experts.

Newer files store kv_b_proj as two tensors, the key part transposed (`split_kv_b`), and give head
sizes as if queries were compared with the latent itself. Both forms are read; the older one is
written, because every llama.cpp version reads it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, place
from model_server.checkpoints.gguf.architectures.experts import (
    is_dense,
    is_sparse,
    only_sigmoid,
    read_sparse,
)
from model_server.checkpoints.gguf.architectures.llama import (
    INVERSE_FREQUENCIES,
    TENSORS,
    feed_forward,
)
from model_server.checkpoints.gguf.facts import REQUIRED, Facts, Key
from model_server.checkpoints.gguf.heads import (
    DECODER,
    FFW,
    FULL,
    LAYERS,
    PATTERN,
    RMS_EPS,
    SLIDING,
    WINDOW,
    count_of_kind,
)
from model_server.checkpoints.gguf.rope import read_rope, rope_metadata
from sax.errors import CheckpointError

_EXPERTS = Key("n_routed_experts", "expert_count", default=None)
# What a file with experts must say
_OF_EXPERTS = (
    _EXPERTS,
    Key("moe_intermediate_size", "expert_feed_forward_length", default=None),
    Key("num_experts_per_tok", "expert_used_count", default=None),
)
_OF_ROUTES = (
    Key("n_shared_experts", "expert_shared_count", default=None, least=0),
    Key("first_k_dense_replace", "leading_dense_block_count", default=0, least=0),
    Key("routed_scaling_factor", "expert_weights_scale", float, 1.0),
    Key("norm_topk_prob", "expert_weights_norm", bool, False),
)
_SOFTMAX, _SIGMOID = 1, 2  # expert_gating_func; the first V2 files have none
# (groups, groups used) by number of experts, for V2 and V3 files without expert_group_count.
_GROUPS = {160: (8, 3), 256: (8, 4)}


def _moe(config: Config, layer: int) -> bool:
    return _EXPERTS.name in config and layer >= config["first_k_dense_replace"]


def _dense(config: Config, layer: int) -> bool:
    return not _moe(config, layer)


def _shared(config: Config, layer: int) -> bool:
    return _moe(config, layer) and bool(config["n_shared_experts"])


def _corrected(config: Config, layer: int) -> bool:
    return _moe(config, layer) and config["topk_method"] == "noaux_tc"


def low_rank_queries(config: Config, layer: int) -> bool:
    return config["q_lora_rank"] is not None


def full_queries(config: Config, layer: int) -> bool:
    return config["q_lora_rank"] is None


def _more_config(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    if facts.get(_EXPERTS.suffix, 0) == 0:
        return _read_youtu(facts, config)
    config |= {key.name: facts.value(replace(key, default=REQUIRED)) for key in _OF_EXPERTS}
    gating = facts.get("expert_gating_func", _unsaid_gating(config))
    if gating not in (_SOFTMAX, _SIGMOID):
        raise CheckpointError(f"its expert_gating_func is {gating!r}; supported are 1 and 2")
    heads = read_latent_heads(facts)
    return {
        "model_type": "deepseek_v3" if gating == _SIGMOID else "deepseek_v2",
        "scoring_func": "sigmoid" if gating == _SIGMOID else "softmax",
        "attention_bias": facts.has("blk.0.attn_output.bias"),
        "num_key_value_heads": config["num_attention_heads"],
        **heads,
        **read_rope(facts, heads["qk_rope_head_dim"]),
        **_read_groups(facts, config, gating),
    }


def _read_youtu(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    """Read a model without experts, whose layers are all dense."""
    for key in (*_OF_EXPERTS, *_OF_ROUTES):
        facts.value(key)
        config.pop(key.name)
    config.pop("moe_layer_freq")
    heads = read_latent_heads(facts)
    return {
        "model_type": "youtu",
        "attention_bias": facts.has("blk.0.attn_output.bias"),
        "mlp_bias": facts.has("blk.0.ffn_up.bias"),
        "rope_interleave": True,
        "num_key_value_heads": config["num_attention_heads"],
        **heads,
        **read_rope(facts, heads["qk_rope_head_dim"]),
    }


def _unsaid_gating(config: Config) -> int:
    """GLM-4.7-Flash's files do not say it; llama.cpp knows them by their sizes, too."""
    glm = config["vocab_size"] == 154880 and config["num_hidden_layers"] in (46, 47, 48)
    return _SIGMOID if glm else _SOFTMAX


def read_latent_heads(facts: Facts) -> dict[str, Any]:
    suffix = "" if facts.get("attention.key_length_mla") is None else "_mla"
    rotated = facts.whole("rope.dimension_count")
    keys = facts.whole(f"attention.key_length{suffix}")
    if rotated % 2 or rotated >= keys:
        raise CheckpointError(f"it cannot rotate {rotated} of {keys} head dimensions")
    values = facts.whole(f"attention.value_length{suffix}")
    return {
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys - rotated,
        "v_head_dim": values,
    }


def _read_groups(facts: Facts, config: Config, gating: int) -> dict[str, Any]:
    groups, used = _GROUPS.get(config["n_routed_experts"], (1, 1))
    groups = facts.whole("expert_group_count", groups)
    used = facts.whole("expert_group_used_count", min(used, groups))
    method = "greedy" if groups == 1 else "group_limited_greedy"
    return {
        "n_group": groups,
        "topk_group": used,
        "topk_method": "noaux_tc" if gating == _SIGMOID else method,
    }


def _more_metadata(config: Config) -> dict[str, Any]:
    if config["model_type"] == "youtu" and config.get("rope_interleave") is False:
        raise CheckpointError("a youtu model with rope_interleave = false has no words in GGUF")
    heads = {
        "attention.head_count_kv": config["num_attention_heads"],
        "attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length": config["v_head_dim"],
        "rope.dimension_count": config["qk_rope_head_dim"],
        **rope_metadata(config),
    }
    return heads if config["model_type"] == "youtu" else heads | _routes_metadata(config)


def _routes_metadata(config: Config) -> dict[str, Any]:
    newer = config["model_type"] == "deepseek_v3"
    scoring = config.get("scoring_func") or ("sigmoid" if newer else "softmax")
    groups = config.get("n_group") or 1
    return {
        "expert_gating_func": _SIGMOID if scoring == "sigmoid" else _SOFTMAX,
        "expert_group_count": groups,
        "expert_group_used_count": config.get("topk_group") or groups,
    }


DEEPSEEK2 = GgufArchitecture(
    name="deepseek2",
    model_types={
        "deepseek_v2": "DeepseekV2ForCausalLM",
        "deepseek_v3": "DeepseekV3ForCausalLM",
        "youtu": "YoutuForCausalLM",
    },
    tensors=TENSORS,
    layer_tensors={
        "attn_norm": place("input_layernorm"),
        "attn_q": place("self_attn.q_proj", needed=full_queries),
        "attn_q_a": place("self_attn.q_a_proj", needed=low_rank_queries),
        "attn_q_a_norm": place("self_attn.q_a_layernorm", needed=low_rank_queries),
        "attn_q_b": place("self_attn.q_b_proj", needed=low_rank_queries),
        "attn_kv_a_mqa": place("self_attn.kv_a_proj_with_mqa"),
        "attn_kv_a_norm": place("self_attn.kv_a_layernorm"),
        "attn_kv_b": place("self_attn.kv_b_proj"),
        "attn_output": place("self_attn.o_proj"),
        "ffn_norm": place("post_attention_layernorm"),
        **feed_forward(needed=_dense),
        "ffn_gate_inp": place("mlp.gate", needed=_moe),
        "exp_probs_b.bias": place("mlp.gate.e_score_correction_bias", needed=_corrected),
        **feed_forward("mlp.experts.{e}", "_exps", needed=_moe),
        **feed_forward("mlp.shared_experts", "_shexp", needed=_shared),
    },
    keys=(
        *DECODER,
        *_OF_EXPERTS,
        *_OF_ROUTES,
        Key("q_lora_rank", "attention.q_lora_rank", default=None),
        Key("kv_lora_rank", "attention.kv_lora_rank"),
    ),
    fixed={"hidden_act": "silu", "attention_bias": False, "moe_layer_freq": 1},
    more_config=_more_config,
    more_metadata=_more_metadata,
    dropped=INVERSE_FREQUENCIES,
    # Sizes of the latent as if it were a head; the heads' own are read where there are both.
    ignored=("attention.head_count_kv", "attention.key_length", "attention.value_length"),
    split_kv_b=True,
    spare_layers=True,
)


# --- with an indexer of keys: DeepSeek V3.2 and GLM-5, which are read and not written


def _indexed(config: Config, layer: int) -> bool:
    return config.get("indexer_types", ["full"] * (layer + 1))[layer] == "full"


_LAYER = {stem: at for stem, at in DEEPSEEK2.layer_tensors.items() if stem != "attn_q"}
_INDEXED = {
    **_LAYER,
    **{stem: place(_LAYER[stem].name) for stem in ("attn_q_a", "attn_q_a_norm", "attn_q_b")},
    **feed_forward(needed=is_dense),
    "ffn_gate_inp": place("mlp.gate", needed=is_sparse),
    "exp_probs_b.bias": place("mlp.gate.e_score_correction_bias", needed=is_sparse),
    **feed_forward("mlp.experts.{e}", "_exps", needed=is_sparse),
    **feed_forward("mlp.shared_experts", "_shexp", needed=is_sparse),
    "indexer.k_norm": place("self_attn.indexer.k_norm", needed=_indexed),
    "indexer.proj": place("self_attn.indexer.weights_proj", needed=_indexed),
    "indexer.attn_k": place("self_attn.indexer.wk", needed=_indexed),
    "indexer.attn_q_b": place("self_attn.indexer.wq_b", needed=_indexed),
}


def _read_indexed(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    config |= {key.name: facts.value(replace(key, default=REQUIRED)) for key in _OF_EXPERTS}
    gating = facts.get("expert_gating_func", _SIGMOID)
    if gating != _SIGMOID:
        raise CheckpointError(f"its expert_gating_func is {gating!r}; supported is {_SIGMOID}")
    heads = read_latent_heads(facts)
    return {
        "mlp_layer_types": read_sparse(facts, config["num_hidden_layers"]),
        "attention_bias": facts.has("blk.0.attn_output.bias"),
        "num_key_value_heads": config["num_attention_heads"],
        "n_group": facts.whole("expert_group_count", 1),
        "topk_group": facts.whole("expert_group_used_count", 1),
        **read_indexer(facts),
        **heads,
        **read_rope(facts, heads["qk_rope_head_dim"]),
    }


def read_indexer(facts: Facts) -> dict[str, Any]:
    return {
        "index_n_heads": facts.whole("attention.indexer.head_count"),
        "index_head_dim": facts.whole("attention.indexer.key_length"),
        "index_topk": facts.whole("attention.indexer.top_k"),
    }


def _read_glm5(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    own = facts.listed("attention.indexer.types", layers, [True] * layers)
    kinds = ["full" if its else "shared" for its in own]
    return _read_indexed(facts, config) | {"indexer_types": kinds}


_INDEXED_IGNORED = (*DEEPSEEK2.ignored, "leading_dense_block_count")
DEEPSEEK32 = GgufArchitecture(
    name="deepseek32",
    model_types={"deepseek_v32": "DeepseekV32ForCausalLM"},
    tensors=TENSORS,
    layer_tensors=_INDEXED,
    keys=DEEPSEEK2.keys,
    fixed={"hidden_act": "silu"},
    more_config=_read_indexed,
    ignored=_INDEXED_IGNORED,
    split_kv_b=True,
)
GLM_DSA = replace(
    DEEPSEEK32,
    name="glm-dsa",
    model_types={"glm_moe_dsa": "GlmMoeDsaForCausalLM"},
    more_config=_read_glm5,
)


# --- Dots 3: that, and latent attention of other sizes in windows


def _slides(config: Config, layer: int) -> bool:
    return config["layer_types"][layer] == SLIDING


def _chooses(config: Config, layer: int) -> bool:
    return not _slides(config, layer)


def _dots_sizes(config: Config, layer: int) -> Config:
    """Return the sizes of a layer's heads and latent, by the names of layers without a window."""
    own = ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
    start = "swa_" if _slides(config, layer) else ""
    return {key: config[f"{start}{key}"] for key in own}


def _query_gain(config: Config, layer: int) -> float:
    return math.sqrt(config["hidden_size"] / config["q_lora_rank"])


def _latent_gain(config: Config, layer: int) -> float:
    return math.sqrt(config["hidden_size"] / _dots_sizes(config, layer)["kv_lora_rank"])


def _read_dots3(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    layers = config["num_hidden_layers"]
    slides = facts.listed(PATTERN, layers)
    types = facts.listed("attention.indexer.types", layers, [not its for its in slides])
    if any(bool(its) is bool(chooses) for its, chooses in zip(slides, types, strict=True)):
        raise CheckpointError("its layers must have either a window or an indexer")
    counts = facts.listed("attention.head_count", layers)
    heads, rotated = read_latent_heads(facts), facts.whole("rope.dimension_count")
    keys = facts.whole("attention.key_length_mla_swa")
    if keys <= rotated:
        raise CheckpointError(f"it cannot rotate {rotated} of {keys} head dimensions")
    shared = facts.whole("expert_shared_count", 1)
    return {
        **heads,
        **read_indexer(facts),
        "apply_mla_qkv_lora_rescale": True,
        "attention_bias": facts.has("blk.0.attn_output.bias"),
        "layer_types": [SLIDING if its else FULL for its in slides],
        "moe_shared_expert_intermediate_size": _shared_width(facts, layers) // shared,
        "num_attention_heads": count_of_kind(counts, slides, False),
        "num_key_value_heads": 1,
        "rope_theta": facts.number("rope.freq_base", 8e7),
        "swa_head_dim": keys,
        "swa_kv_lora_rank": facts.whole("attention.kv_lora_rank_swa"),
        "swa_num_attention_heads": count_of_kind(counts, slides, True),
        "swa_q_lora_rank": config["q_lora_rank"],
        "swa_qk_nope_head_dim": keys - rotated,
        "swa_qk_rope_head_dim": rotated,
        "swa_rope_theta": facts.number("rope.freq_base_swa", 5e4),
        "swa_v_head_dim": facts.whole("attention.value_length_mla_swa"),
    }


def _shared_width(facts: Facts, layers: int) -> int:
    """Return the width of the feed-forward that every token uses."""
    names = (f"blk.{layer}.ffn_up_shexp.weight" for layer in range(layers))
    return next((facts.rows(name) for name in names if facts.has(name)), 1)


DOTS3 = GgufArchitecture(
    name="dots3note",
    model_types={"dots3_note": "Dots3NoteForConditionalGeneration"},
    tensors=TENSORS,
    layer_tensors={
        **{stem: place(_LAYER[stem].name) for stem in _LAYER if "ffn_" not in stem},
        "attn_gate": place("self_attn.g_proj"),
        "attn_k_norm": place("self_attn.k_rope_only_layernorm"),
        "attn_q_a_norm": place("self_attn.q_a_layernorm", times=_query_gain),
        "attn_kv_a_norm": place("self_attn.kv_a_layernorm", times=_latent_gain),
        "ffn_norm": _LAYER["ffn_norm"],
        **feed_forward(needed=is_dense),
        "ffn_gate_inp": place("mlp.gate", needed=is_sparse),
        "exp_probs_b.bias": place("mlp.gate.e_score_correction_bias", needed=is_sparse),
        **feed_forward("mlp.experts.{e}", "_exps", needed=is_sparse),
        **feed_forward("mlp.shared_experts", "_shexp", needed=is_sparse),
        **{
            stem: replace(_INDEXED[stem], needed=_chooses)
            for stem in _INDEXED
            if "indexer." in stem
        },
    },
    keys=(
        Key("hidden_size", "embedding_length"),
        LAYERS,
        Key("max_position_embeddings", "context_length"),
        FFW,
        RMS_EPS,
        *(replace(key, default=REQUIRED) for key in _OF_EXPERTS),
        *_OF_ROUTES,
        Key("kv_lora_rank", "attention.kv_lora_rank"),
        Key("n_group", "expert_group_count", default=1),
        Key("q_lora_rank", "attention.q_lora_rank"),
        Key("sliding_window_size", WINDOW),
        Key("topk_group", "expert_group_used_count", default=1),
    ),
    fixed={"hidden_act": "silu", "moe_layer_freq": 1, "use_dsa": True},
    more_config=_read_dots3,
    # Sizes of the latents as if they were heads.
    ignored=(
        *DEEPSEEK2.ignored,
        "attention.key_length_swa",
        "attention.value_length_swa",
    ),
    split_kv_b=True,
    latent_sizes=_dots_sizes,
)
