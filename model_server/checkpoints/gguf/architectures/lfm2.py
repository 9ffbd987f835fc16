"""LFM2, with and without experts: short convolutions, and attention where a file counts key heads.

A file holds the width of the feed-forwards as it is; config.json may hold one to be adjusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    TensorPlace,
    optional,
    place,
)
from model_server.checkpoints.gguf.architectures.experts import only_sigmoid
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import SIZES, read_heads
from model_server.checkpoints.gguf.rope import read_rope, rotary_heads_metadata
from sax.errors import CheckpointError

_KV_HEADS, _FFW = "attention.head_count_kv", "feed_forward_length"
_CONV, _FULL = "conv", "full_attention"


def _kinds(config: Config) -> list[str]:
    layers, given = config["num_hidden_layers"], config.get("layer_types")
    if given is not None:
        return given
    chosen = config.get("full_attn_idxs") or range(layers)
    return [_FULL if index in chosen else _CONV for index in range(layers)]


def _attends(config: Config, layer: int) -> bool:
    return _kinds(config)[layer] == _FULL


def _convolves(config: Config, layer: int) -> bool:
    return not _attends(config, layer)


_LAYER: Mapping[str, TensorPlace] = {
    "attn_norm": place("operator_norm"),
    "attn_q": place("self_attn.q_proj", needed=_attends),
    "attn_k": place("self_attn.k_proj", needed=_attends),
    "attn_v": place("self_attn.v_proj", needed=_attends),
    "attn_output": place("self_attn.out_proj", needed=_attends),
    "attn_q_norm": place("self_attn.q_layernorm", needed=_attends),
    "attn_k_norm": place("self_attn.k_layernorm", needed=_attends),
    "shortconv.in_proj": place("conv.in_proj", needed=_convolves),
    "shortconv.conv": place("conv.conv", filters=True, needed=_convolves),
    "shortconv.out_proj": place("conv.out_proj", needed=_convolves),
    "ffn_norm": place("ffn_norm"),
    "ffn_gate": place("feed_forward.w1"),
    "ffn_up": place("feed_forward.w3"),
    "ffn_down": place("feed_forward.w2"),
}


def _more_config(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    counts = key_heads(facts, config["num_hidden_layers"])
    heads = read_heads(facts, config, max(counts))
    return {
        **heads,
        **read_rope(facts, heads["head_dim"]),
        "block_auto_adjust_ff_dim": False,
        "intermediate_size": facts.whole(_FFW),
        "layer_types": [_FULL if count else _CONV for count in counts],
        "tie_embedding": config["tie_word_embeddings"],
    }


def key_heads(facts: Facts, layers: int) -> list[int]:
    """Return the key heads of each layer, 0 if it does not attend; one number is of all layers."""
    given = facts.get_any(_KV_HEADS)
    if isinstance(given, np.ndarray) and given.shape == (layers,):
        counts = [int(count) for count in given]
        if min(counts) >= 0 and len({*counts} - {0}) == 1:
            return counts
        raise CheckpointError(f"its {_KV_HEADS} is {counts}; all layers that attend must be alike")
    return [facts.whole(_KV_HEADS)] * layers


def _more_metadata(config: Config) -> dict[str, Any]:
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    return rotary_heads_metadata(config) | {
        _KV_HEADS: [heads if kind == _FULL else 0 for kind in _kinds(config)],
        _FFW: _ffw_size(config),
    }


def _ffw_size(config: Config) -> int:
    size = config.get("block_ff_dim") or config.get("intermediate_size") or 12288
    if not config.get("block_auto_adjust_ff_dim", True):
        return size
    size = int(config.get("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    multiple = config.get("block_multiple_of", 256)
    return -(-size // multiple) * multiple


LFM2 = GgufArchitecture(
    name="lfm2",
    model_types={"lfm2": "Lfm2ForCausalLM"},
    tensors={
        "token_embd": place("model.embed_tokens"),
        "token_embd_norm": place("model.embedding_norm"),
        "output": place("lm_head", needed=optional),
    },
    layer_tensors=_LAYER,
    keys=(
        *SIZES,
        Key("norm_eps", "attention.layer_norm_rms_epsilon", float, 1e-5),
        Key("conv_L_cache", "shortconv.l_cache", default=3),
    ),
    fixed={"conv_bias": False},
    more_config=_more_config,
    more_metadata=_more_metadata,
)

# --- LFM2 with experts


def _lfm2_sparse(config: Config, layer: int) -> bool:
    return layer >= config["num_dense_layers"]


def _lfm2_dense(config: Config, layer: int) -> bool:
    return not _lfm2_sparse(config, layer)


def _read_lfm2moe(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    biased = any(name.endswith(".exp_probs_b.bias") for name in facts.tensors)
    more = LFM2.more_config(facts, config)
    more.pop("block_auto_adjust_ff_dim")
    return more | {"use_expert_bias": biased}


_LFM2_FFW = {"ffn_gate": "w1", "ffn_up": "w3", "ffn_down": "w2"}
LFM2MOE = GgufArchitecture(
    name="lfm2moe",
    model_types={"lfm2_moe": "Lfm2MoeForCausalLM"},
    tensors=LFM2.tensors,
    layer_tensors={
        **LFM2.layer_tensors,
        **{
            stem: place(f"feed_forward.{name}", needed=_lfm2_dense)
            for stem, name in _LFM2_FFW.items()
        },
        **{
            f"{stem}_exps": place(f"feed_forward.experts.{{e}}.{name}", needed=_lfm2_sparse)
            for stem, name in _LFM2_FFW.items()
        },
        "ffn_gate_inp": place("feed_forward.gate", needed=_lfm2_sparse),
        "exp_probs_b.bias": place("feed_forward.expert_bias", needed=optional),
    },
    keys=(
        *LFM2.keys,
        Key("num_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("num_dense_layers", "leading_dense_block_count", default=0, least=0),
        Key("norm_topk_prob", "expert_weights_norm", bool, True),
        Key("routed_scaling_factor", "expert_weights_scale", float, 1.0),
    ),
    fixed=LFM2.fixed,
    more_config=_read_lfm2moe,
)
