"""BERT and MiniLM for embedding, without the heads of other tasks."""

from __future__ import annotations

import re
from typing import Any

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, place
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import FFW, SIZES
from sax.errors import CheckpointError

_CAUSAL, _POOLING = "attention.causal", "pooling_type"
_POOLINGS = {0: "mean", 1: "mean", 2: "cls"}  # 0: unspecified


def _more_config(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    if facts.flag(_CAUSAL, False):
        raise CheckpointError("it is a BERT with causal attention, which is not supported")
    pooling = facts.get(_POOLING, 0)
    if pooling not in _POOLINGS:
        raise CheckpointError(
            f"pooling_type {pooling!r} is not supported; supported are 1 (mean of the tokens) and "
            "2 (first token)"
        )
    return {"type_vocab_size": facts.rows("token_types.weight"), "pooling": _POOLINGS[pooling]}


def _more_metadata(config: Config) -> dict[str, Any]:
    return {_CAUSAL: False, _POOLING: 2 if config.get("pooling") == "cls" else 1}


BERT = GgufArchitecture(
    name="bert",
    model_types={"bert": "BertModel"},
    tensors={
        "token_embd": place("embeddings.word_embeddings"),
        "position_embd": place("embeddings.position_embeddings"),
        "token_types": place("embeddings.token_type_embeddings"),
        "token_embd_norm": place("embeddings.LayerNorm"),
    },
    layer_tensors={
        "attn_q": place("attention.self.query"),
        "attn_k": place("attention.self.key"),
        "attn_v": place("attention.self.value"),
        "attn_output": place("attention.output.dense"),
        "attn_output_norm": place("attention.output.LayerNorm"),
        "ffn_up": place("intermediate.dense"),
        "ffn_down": place("output.dense"),
        "layer_output_norm": place("output.LayerNorm"),
    },
    layers="encoder.layer",
    keys=(*SIZES, FFW, Key("layer_norm_eps", "attention.layer_norm_epsilon", float, 1e-12)),
    fixed={"hidden_act": "gelu", "position_embedding_type": "absolute"},
    more_config=_more_config,
    more_metadata=_more_metadata,
    usual=lambda name: name.removeprefix("bert."),  # present in models for other tasks
    dropped=re.compile(r"(pooler|cls|classifier|qa_outputs)\..*|embeddings\.position_ids"),
)


# --- ModernBERT, which is read and not written


def _not_first(config: Config, layer: int) -> bool:
    return layer > 0


def _read_modern(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    if facts.flag(_CAUSAL, False):
        raise CheckpointError("it is a ModernBERT with causal attention, which is not supported")
    pooling = facts.get(_POOLING, 0)
    if pooling not in _POOLINGS:
        raise CheckpointError(
            f"pooling_type {pooling!r} is not supported; supported are 0, 1 and 2"
        )
    return {
        "pooling": _POOLINGS[pooling],
        "local_attention": facts.whole("attention.sliding_window"),
        "global_attn_every_n_layers": facts.whole("attention.sliding_window_pattern", 3),
        "global_rope_theta": facts.number("rope.freq_base", 160000.0),
        "local_rope_theta": facts.number("rope.freq_base_swa", 10000.0),
        "hidden_activation": facts.get("hidden_activation", "gelu"),
    }


MODERN_BERT = GgufArchitecture(
    name="modern-bert",
    model_types={"modernbert": "ModernBertModel"},
    tensors={
        "token_embd": place("embeddings.tok_embeddings"),
        "token_embd_norm": place("embeddings.norm"),
        "output_norm": place("final_norm"),
    },
    layer_tensors={
        "attn_norm": place("attn_norm", needed=_not_first),
        "attn_qkv": place("attn.Wqkv"),
        "attn_output": place("attn.Wo"),
        "ffn_norm": place("mlp_norm"),
        "ffn_up": place("mlp.Wi"),
        "ffn_down": place("mlp.Wo"),
    },
    layers="layers",
    keys=(*SIZES, FFW, Key("norm_eps", "attention.layer_norm_epsilon", float, 1e-5)),
    fixed={"attention_bias": False, "mlp_bias": False, "norm_bias": False},
    more_config=_read_modern,
    usual=lambda name: name.removeprefix("model."),
    ignored=("attention.layer_norm_rms_epsilon", "classifier.pooling_type"),
)
