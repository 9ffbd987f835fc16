"""Decoders with layer norms: GPT-2, GPT-J, GPT-NeoX (Pythia), StarCoder2, Phi-2, Command R and R7B.

GPT-2's matrices are published as [in, out] and stored as [out, in]. GPT-NeoX publishes q, k, v per
head; files store all queries, then all keys, then all values. llama.cpp names GPT-J's tensors but
does not run GPT-J; files that other programs write under those names are read. The rows of the
others are as published. llama.cpp implements no window for StarCoder2; here it is written and read
under GGUF's own key. Every fourth layer of Command R7B has no window, which files take for granted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    TensorPlace,
    fused,
    optional,
    place,
)
from model_server.checkpoints.gguf.architectures.llama import (
    NORMS,
    PROJECTIONS,
    TENSORS,
    feed_forward,
)
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    FFW,
    SIZES,
    layer_types,
    read_layer_types,
    read_window,
    window_metadata,
)
from model_server.checkpoints.gguf.rope import (
    partly_rotated_metadata,
    read_partly_rotated,
    read_rope,
    read_rotary_heads,
    rope_factors,
    rope_metadata,
    rotary_heads_metadata,
)
from sax.errors import CheckpointError

_GPT_KEYS = (
    Key("n_embd", "embedding_length"),
    Key("n_layer", "block_count"),
    Key("n_head", "attention.head_count"),
    Key("n_positions", "context_length"),
    Key("n_inner", "feed_forward_length", default=None),
    Key("layer_norm_epsilon", "attention.layer_norm_epsilon", float, 1e-5),
)
_ROTATED = "rope.dimension_count"
# Causal masks and rotary frequencies that old exporters stored as buffers of every layer.
_MASKS = re.compile(r".*\.(attn|attention)\.(bias|masked_bias|rotary_emb\.inv_freq)")


def _transposed(name: str) -> TensorPlace:
    return place(name, transposed=True)


def _ffw(config: Config) -> dict[str, Any]:
    """llama.cpp requires the feed-forward size, which config.json may omit."""
    return {"feed_forward_length": config.get("n_inner") or 4 * config["n_embd"]}


def _with_prefix(name: str) -> str:
    """Add the prefix that the first checkpoints, saved without a head, lack."""
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def _rotated(facts: Facts, size: int) -> int:
    rotated = facts.whole(_ROTATED, size)
    if rotated % 2 or rotated > size:
        raise CheckpointError(f"it cannot rotate {rotated} of {size} head dimensions")
    return rotated


GPT2 = GgufArchitecture(
    name="gpt2",
    model_types={"gpt2": "GPT2LMHeadModel"},
    tensors={
        "token_embd": place("transformer.wte"),
        "position_embd": place("transformer.wpe"),
        "output_norm": place("transformer.ln_f"),
        "output": place("lm_head", needed=optional),
    },
    layer_tensors={
        "attn_norm": place("ln_1"),
        "attn_qkv": _transposed("attn.c_attn"),
        "attn_output": _transposed("attn.c_proj"),
        "ffn_norm": place("ln_2"),
        "ffn_up": _transposed("mlp.c_fc"),
        "ffn_down": _transposed("mlp.c_proj"),
    },
    layers="transformer.h",
    keys=_GPT_KEYS,
    layer_count="n_layer",
    fixed={
        "activation_function": "gelu_new",
        "add_cross_attention": False,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    more_config=lambda facts, config: {},
    more_metadata=_ffw,
    usual=_with_prefix,
    dropped=_MASKS,
)


def _read_gptj(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    if facts.number("rope.freq_base", 10000.0) != 10000.0:
        raise CheckpointError("its rope.freq_base is not 10000, as GPT-J requires")
    size = config["n_embd"] // config["n_head"]
    return {"rotary_dim": _rotated(facts, size)}


def _gptj_metadata(config: Config) -> dict[str, Any]:
    # null means that the whole head rotates; only an absent key means GPT-J 6B's 64.
    rotated = config.get("rotary_dim", 64) or config["n_embd"] // config["n_head"]
    return _ffw(config) | {_ROTATED: rotated}


GPTJ = GgufArchitecture(
    name="gptj",
    model_types={"gptj": "GPTJForCausalLM"},
    tensors={
        "token_embd": place("transformer.wte"),
        "output_norm": place("transformer.ln_f"),
        "output": place("lm_head", needed=optional),
    },
    layer_tensors={
        "attn_norm": place("ln_1"),
        "attn_q": place("attn.q_proj"),
        "attn_k": place("attn.k_proj"),
        "attn_v": place("attn.v_proj"),
        "attn_output": place("attn.out_proj"),
        "ffn_up": place("mlp.fc_in"),
        "ffn_down": place("mlp.fc_out"),
    },
    layers="transformer.h",
    keys=_GPT_KEYS,
    layer_count="n_layer",
    fixed={"activation_function": "gelu_new"},
    more_config=_read_gptj,
    more_metadata=_gptj_metadata,
    dropped=_MASKS,
)


def _read_neox(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    size = config["hidden_size"] // config["num_attention_heads"]
    rotated = _rotated(facts, size)
    rope = read_rope(facts, rotated)
    return {
        "rotary_pct": rotated / size,
        "rotary_emb_base": rope["rope_theta"],
        "rope_scaling": rope["rope_scaling"],
    }


def _neox_metadata(config: Config) -> dict[str, Any]:
    size = config["hidden_size"] // config["num_attention_heads"]
    new = config.get("rope_parameters") or {}
    share = new.get("partial_rotary_factor") or config.get("rotary_pct") or 0.25
    theta = new.get("rope_theta") or config.get("rotary_emb_base") or 10000.0
    return rope_metadata({**config, "rope_theta": theta}) | {_ROTATED: int(size * share)}


GPTNEOX = GgufArchitecture(
    name="gptneox",
    model_types={"gpt_neox": "GPTNeoXForCausalLM"},
    tensors={
        "token_embd": place("gpt_neox.embed_in"),
        "output_norm": place("gpt_neox.final_layer_norm"),
        "output": place("embed_out", needed=optional),
    },
    layer_tensors={
        "attn_norm": place("input_layernorm"),
        "attn_qkv": place("attention.query_key_value", order=fused("num_attention_heads")),
        "attn_output": place("attention.dense"),
        "ffn_norm": place("post_attention_layernorm"),
        "ffn_up": place("mlp.dense_h_to_4h"),
        "ffn_down": place("mlp.dense_4h_to_h"),
    },
    layers="gpt_neox.layers",
    keys=(
        *SIZES,
        FFW,
        Key("layer_norm_eps", "attention.layer_norm_epsilon", float, 1e-5),
        Key("use_parallel_residual", "use_parallel_residual", bool, True),
    ),
    fixed={"hidden_act": "gelu", "attention_bias": True},
    more_config=_read_neox,
    more_metadata=_neox_metadata,
    dropped=_MASKS,
)


_NORM_EPSILON = "attention.layer_norm_epsilon"


def _read_starcoder2(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    return read_rotary_heads(facts, config) | {
        "sliding_window": read_window(facts),
        "use_bias": facts.has("blk.0.attn_q.bias"),
    }


def _starcoder2_metadata(config: Config) -> dict[str, Any]:
    everywhere = layer_types(config["num_hidden_layers"], 0)
    window = window_metadata(config.get("sliding_window"), everywhere, 0)
    return rotary_heads_metadata(config) | window


def _phi2_metadata(config: Config) -> dict[str, Any]:
    return partly_rotated_metadata(config, 0.5)


STARCODER2 = GgufArchitecture(
    name="starcoder2",
    model_types={"starcoder2": "Starcoder2ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        "ffn_up": place("mlp.c_fc"),
        "ffn_down": place("mlp.c_proj"),
    },
    keys=(*SIZES, FFW, Key("norm_epsilon", _NORM_EPSILON, float, 1e-5)),
    fixed={"hidden_act": "gelu_pytorch_tanh"},
    more_config=_read_starcoder2,
    more_metadata=_starcoder2_metadata,
    factors=rope_factors,
)
PHI2 = GgufArchitecture(
    name="phi2",
    model_types={"phi": "PhiForCausalLM"},
    tensors={
        "token_embd": place("model.embed_tokens"),
        "output_norm": place("model.final_layernorm"),
        "output": place("lm_head"),
    },
    layer_tensors={
        **PROJECTIONS,
        "attn_norm": place("input_layernorm"),
        "attn_output": place("self_attn.dense"),
        "ffn_up": place("mlp.fc1"),
        "ffn_down": place("mlp.fc2"),
    },
    keys=(*SIZES, FFW, Key("layer_norm_eps", _NORM_EPSILON, float, 1e-5)),
    fixed={"hidden_act": "gelu_new", "qk_layernorm": False},
    more_config=read_partly_rotated,
    more_metadata=_phi2_metadata,
)


_PERIOD, _WINDOW = 4, 4096  # of Command R7B
_TENSORS: Mapping[str, TensorPlace] = {
    "token_embd": place("model.embed_tokens"),
    "output_norm": place("model.norm"),
}
_LAYER: Mapping[str, TensorPlace] = {
    **PROJECTIONS,
    **feed_forward(),
    "attn_norm": place("input_layernorm"),
}
_KEYS = (
    *SIZES,
    FFW,
    Key("layer_norm_eps", "attention.layer_norm_epsilon", float, 1e-5),
    Key("logit_scale", "logit_scale", float, 0.0625),
)
_FIXED = {"hidden_act": "silu", "tie_word_embeddings": True}
_HEAD = re.compile(r"lm_head\.weight")  # tied: a copy of the embedding


def _read_command_r(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    return read_rotary_heads(facts, config) | {
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "model_max_length": config["max_position_embeddings"],
        "use_qk_norm": facts.has("blk.0.attn_q_norm.weight"),
    }


def _command_r_metadata(config: Config) -> dict[str, Any]:
    context = config.get("model_max_length") or config["max_position_embeddings"]
    return rotary_heads_metadata(config) | {"context_length": context}


def _read_cohere2(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    return read_rotary_heads(facts, config) | {
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "layer_types": read_layer_types(facts, config["num_hidden_layers"], _PERIOD),
        "sliding_window": read_window(facts) or _WINDOW,
    }


def _cohere2_metadata(config: Config) -> dict[str, Any]:
    period = config.get("sliding_window_pattern") or _PERIOD
    kinds = config.get("layer_types") or layer_types(config["num_hidden_layers"], period)
    window = config.get("sliding_window") or _WINDOW
    return rotary_heads_metadata(config) | window_metadata(window, kinds, _PERIOD)


COMMAND_R = GgufArchitecture(
    name="command-r",
    model_types={"cohere": "CohereForCausalLM"},
    tensors=_TENSORS,
    layer_tensors={
        **_LAYER,
        "attn_q_norm": place("self_attn.q_norm", needed=optional),
        "attn_k_norm": place("self_attn.k_norm", needed=optional),
    },
    keys=_KEYS,
    fixed=_FIXED,
    more_config=_read_command_r,
    more_metadata=_command_r_metadata,
    factors=rope_factors,
    dropped=_HEAD,
)
COHERE2 = GgufArchitecture(
    name="cohere2",
    model_types={"cohere2": "Cohere2ForCausalLM"},
    tensors=_TENSORS,
    layer_tensors=_LAYER,
    keys=_KEYS,
    fixed={**_FIXED, "use_qk_norm": False},
    more_config=_read_cohere2,
    more_metadata=_cohere2_metadata,
    factors=rope_factors,
    dropped=_HEAD,
)
