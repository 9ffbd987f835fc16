"""The grid of GPT-2, GPT-J, GPT-NeoX and of the encoder BERT: LayerNorm, biases, plain GELU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.golden.families_maker.case import Case, Shapes


def gpt2(**sizes: Any) -> dict[str, Any]:
    return {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "bos_token_id": 96,
        "embd_pdrop": 0.1,
        "eos_token_id": 96,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "n_ctx": 64,
        "n_embd": 48,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 64,
        "resid_pdrop": 0.1,
        "summary_type": "cls_index",
        "vocab_size": 97,
    } | sizes


def gptj(**sizes: Any) -> dict[str, Any]:
    return {
        "activation_function": "gelu_new",
        "architectures": ["GPTJForCausalLM"],
        "attn_pdrop": 0.0,
        "bos_token_id": 96,
        "embd_pdrop": 0.0,
        "eos_token_id": 96,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "model_type": "gptj",
        "n_embd": 48,
        "n_head": 4,
        "n_inner": None,
        "n_layer": 2,
        "n_positions": 64,
        "resid_pdrop": 0.0,
        "rotary": True,
        "rotary_dim": 4,
        "scale_attn_weights": True,
        "tie_word_embeddings": False,
        "transformers_version": "4.18.0.dev0",
        "use_cache": True,
        "vocab_size": 97,
    } | sizes


def gpt_neox(**sizes: Any) -> dict[str, Any]:
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "gelu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 64,
        "model_type": "gpt_neox",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.24.0",
        "use_cache": True,
        "use_parallel_residual": True,
        "vocab_size": 97,
    } | sizes


def bert(**sizes: Any) -> dict[str, Any]:
    return {
        "architectures": ["BertModel"],
        "attention_probs_dropout_prob": 0.1,
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 48,
        "initializer_range": 0.02,
        "intermediate_size": 64,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 64,
        "model_type": "bert",
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "transformers_version": "4.8.2",
        "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": 97,
    } | sizes


def roberta(**sizes: Any) -> dict[str, Any]:
    own = {
        "architectures": ["RobertaModel"],
        "bos_token_id": 0,
        "eos_token_id": 2,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 66,
        "model_type": "roberta",
        "pad_token_id": 1,
        "type_vocab_size": 1,
    }
    return bert(**own | sizes)


def without_prefix(name: str) -> str:
    """The first GPT-2 files hold the bare model, whose names have no `transformer.`."""
    return name.removeprefix("transformer.")


def gpt2_masks(config: Mapping[str, Any]) -> Shapes:
    context = config["n_positions"]
    return {f"h.{i}.attn.bias": (1, 1, context, context) for i in range(config["n_layer"])}


def gptj_masks(config: Mapping[str, Any]) -> Shapes:
    context, names = config["n_positions"], [f"transformer.h.{i}.attn" for i in range(2)]
    masks: Shapes = {f"{name}.bias": (1, 1, context, context) for name in names}
    return masks | {f"{name}.masked_bias": () for name in names}


def gpt_neox_masks(config: Mapping[str, Any]) -> Shapes:
    context, half = config["max_position_embeddings"], 2
    names = [f"gpt_neox.layers.{i}.attention" for i in range(config["num_hidden_layers"])]
    masks: Shapes = {f"{name}.bias": (1, 1, context, context) for name in names}
    masks |= {f"{name}.masked_bias": () for name in names}
    return masks | {f"{name}.rotary_emb.inv_freq": (half,) for name in names}


def position_ids(config: Mapping[str, Any]) -> Shapes:
    return {"embeddings.position_ids": (1, config["max_position_embeddings"])}


def bert_of_a_task(name: str) -> str:
    """A file of a model with a head holds the encoder under `bert.`."""
    return f"bert.{name}"


CASES = [
    Case(name="gpt2", config=gpt2(), published=without_prefix, spare=gpt2_masks),
    Case(
        name="gpt2_finetuned",
        config=gpt2(n_embd=40, n_inner=56, n_layer=3, torch_dtype="float32"),
    ),
    Case(
        name="gptj",
        config=gptj(),
        spare=gptj_masks,
        without={"partial": {"rotary_dim": 12}},
    ),
    Case(
        name="gptj_wide",
        config=gptj(n_embd=40, n_inner=56, rotary_dim=6, n_layer=3),
        without={"partial": {"rotary_dim": 10}},
    ),
    Case(
        name="gpt_neox",
        config=gpt_neox(),
        spare=gpt_neox_masks,
        without={
            "partial": {"rotary_pct": 1.0},
            "parallel residual": {"use_parallel_residual": False},
        },
    ),
    Case(
        name="gpt_neox_sequential",
        config=gpt_neox(hidden_size=48, rotary_pct=0.5, use_parallel_residual=False),
        without={"sequential": {"use_parallel_residual": True}},
    ),
    Case(
        name="gpt_neox_tied_unbiased",
        config=gpt_neox(
            attention_bias=False, tie_word_embeddings=True, rotary_pct=1.0, hidden_act="gelu_fast"
        ),
    ),
    Case(name="bert", config=bert(), spare=position_ids),
    Case(name="roberta", config=roberta()),
    Case(
        name="xlm_roberta",
        config=roberta(architectures=["XLMRobertaModel"], model_type="xlm-roberta", hidden_size=40),
    ),
    Case(
        name="bert_of_a_task",
        config=bert(hidden_size=40, architectures=["BertForMaskedLM"], num_hidden_layers=2),
        published=bert_of_a_task,
    ),
]
