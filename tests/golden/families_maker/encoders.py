"""The grid of ModernBERT."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case


def modernbert(**sizes: Any) -> dict[str, Any]:
    """As the base model is published: positions and kinds of layers by numbers."""
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "classifier_dropout": 0.0,
        "classifier_pooling": "mean",
        "cls_token_id": 1,
        "decoder_bias": True,
        "deterministic_flash_attn": False,
        "embedding_dropout": 0.0,
        "eos_token_id": 2,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "gradient_checkpointing": False,
        "hidden_activation": "gelu",
        "hidden_size": 48,
        "initializer_cutoff_factor": 2.0,
        "initializer_range": 0.02,
        "intermediate_size": 40,
        "layer_norm_eps": 1e-05,
        "local_attention": 9,
        "local_rope_theta": 100.0,
        "max_position_embeddings": 64,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "model_type": "modernbert",
        "norm_bias": False,
        "norm_eps": 1e-05,
        "num_attention_heads": 4,
        "num_hidden_layers": 5,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "sep_token_id": 2,
        "sparse_pred_ignore_index": -100,
        "sparse_prediction": False,
        "torch_dtype": "float32",
        "transformers_version": "4.47.0.dev0",
        "vocab_size": 97,
    } | sizes


def modernbert_biases() -> dict[str, Any]:
    """As transformers 5 writes it: kinds of layers listed, a rope for each."""
    config = modernbert(
        architectures=["ModernBertModel"],
        attention_bias=True,
        mlp_bias=True,
        norm_bias=True,
        hidden_size=40,
        hidden_activation="gelu_pytorch_tanh",
        local_attention=6,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    )
    for key in ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"):
        del config[key]
    return config


def of_a_task(name: str) -> str:
    """A file of a model with a head holds the encoder under `model.`."""
    return f"model.{name}"


CASES = [
    Case(
        name="modernbert",
        config=modernbert(),
        published=of_a_task,
        without={
            "window": {"local_attention": 40},
            "pattern": {"global_attn_every_n_layers": 2},
            "local base": {"local_rope_theta": 160000.0},
            "global base": {"global_rope_theta": 100.0},
        },
    ),
    Case(
        name="modernbert_biases",
        config=modernbert_biases(),
        without={"window": {"local_attention": 40}},
    ),
]
