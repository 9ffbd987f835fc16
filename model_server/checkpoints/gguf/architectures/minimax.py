"""MiniMax-M2 and M3, whose experts are chosen by sigmoids; read and not written.

Layers of M3 that choose blocks are those with an indexer. A file says nothing of its gates, which
are the published models' in llama.cpp, too.
"""

from __future__ import annotations

from typing import Any

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, TensorPlace, place
from model_server.checkpoints.gguf.architectures.experts import (
    SILU,
    USED,
    is_dense,
    is_sparse,
    only_shares,
    only_sigmoid,
)
from model_server.checkpoints.gguf.architectures.llama import (
    HEAD_NORMS,
    NORMS,
    PROJECTIONS,
    TENSORS,
    feed_forward,
    plus_one,
)
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import DECODER, FULL, RMS_EPS, SIZES
from model_server.checkpoints.gguf.rope import read_partly_rotated


def _read(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    more = read_partly_rotated(facts, config)
    rotated = round(more.pop("partial_rotary_factor") * more["head_dim"])
    return more | {"rotary_dim": rotated}


_BLOCK = "block_sparse_moe"


def _experts(**rest: Any) -> dict[str, TensorPlace]:
    parts = {"gate": "w1", "down": "w2", "up": "w3"}
    return {
        "ffn_gate_inp": place(f"{_BLOCK}.gate", **rest),
        "exp_probs_b.bias": place(f"{_BLOCK}.e_score_correction_bias", **rest),
        **{
            f"ffn_{of}_exps": place(f"{_BLOCK}.experts.{{e}}.{its}", **rest)
            for of, its in parts.items()
        },
    }


_COUNTS = (Key("num_local_experts", "expert_count"), USED)
MINIMAX_M2 = GgufArchitecture(
    name="minimax-m2",
    model_types={"minimax_m2": "MiniMaxM2ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={**NORMS, **PROJECTIONS, **HEAD_NORMS, **_experts()},
    keys=(*DECODER, *_COUNTS),
    fixed={**SILU, "scoring_func": "sigmoid", "use_qk_norm": True, "use_routing_bias": True},
    more_config=_read,
    ignored=("expert_feed_forward_length",),  # as feed_forward_length
)


# --- M3, whose norms hold one less than they multiply by


_CHOOSING = "minimax_m3_sparse"
_DENSE = Key("first_k_dense_replace", "leading_dense_block_count", default=0, least=0)


def _chooses(config: Config, layer: int) -> bool:
    return config["layer_types"][layer] == _CHOOSING


def _read_m3(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_shares(facts)
    layers, dense = range(config["num_hidden_layers"]), facts.value(_DENSE)
    chooses = [facts.has(f"blk.{layer}.indexer.q_proj.weight") for layer in layers]
    return {
        **_read(facts, config),
        "layer_types": [_CHOOSING if its else FULL for its in chooses],
        "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in layers],
        "shared_intermediate_size": _shared_width(facts, dense, config),
    }


def _shared_width(facts: Facts, dense: int, config: dict[str, Any]) -> int:
    """Return the width of the feed-forward that every token uses. Raises CheckpointError."""
    if dense >= config["num_hidden_layers"]:
        return config["intermediate_size"]  # no layer has one
    return facts.rows(f"blk.{dense}.ffn_up_shexp.weight")


_INDEXER = {of: place(f"self_attn.index_{of}", needed=_chooses) for of in ("q_norm", "k_norm")}
MINIMAX_M3 = GgufArchitecture(
    name="minimax-m3",
    model_types={"minimax_m3_vl_text": "MiniMaxM3SparseForConditionalGeneration"},
    tensors={**TENSORS, **plus_one({"output_norm": TENSORS["output_norm"]})},
    layer_tensors={
        **PROJECTIONS,
        **plus_one({**NORMS, **HEAD_NORMS}),
        **plus_one({f"indexer.{of}": at for of, at in _INDEXER.items()}),
        "indexer.q_proj": place("self_attn.index_q_proj", needed=_chooses),
        "indexer.k_proj": place("self_attn.index_k_proj", needed=_chooses),
        **feed_forward(needed=is_dense),
        **_experts(needed=is_sparse),
        **feed_forward(f"{_BLOCK}.shared_experts", "_shexp", needed=is_sparse),
    },
    keys=(
        *SIZES,
        RMS_EPS,
        *_COUNTS,
        Key("dense_intermediate_size", "feed_forward_length"),
        Key("index_block_size", "attention.indexer.block_size"),
        Key("index_head_dim", "attention.indexer.key_length"),
        Key("index_local_blocks", "attention.indexer.local_blocks", default=1, least=0),
        Key("index_n_heads", "attention.indexer.head_count"),
        Key("index_topk_blocks", "attention.indexer.top_k"),
        Key("intermediate_size", "expert_feed_forward_length"),
        Key("routed_scaling_factor", "expert_weights_scale", float, 1.0),
    ),
    fixed={"scoring_func": "sigmoid", "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    more_config=_read_m3,
    ignored=("expert_shared_count",),  # their width is read
)
