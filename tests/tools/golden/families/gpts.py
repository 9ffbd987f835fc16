"""GPT-2, GPT-J, GPT-NeoX and the encoders: LayerNorm, biases, plain GELU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.tools.golden.common import Shapes
from tests.tools.golden.families.case import Case


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


def of_a_task(name: str) -> str:
    """A file of a model with a head holds the encoder under `model.`."""
    return f"model.{name}"


CASES = [
    Case("gpt2", published=without_prefix, spare=gpt2_masks),
    Case("gpt2_finetuned"),
    Case("gptj", without={"partial": {"rotary_dim": 12}}, spare=gptj_masks),
    Case("gptj_wide", without={"partial": {"rotary_dim": 10}}),
    Case(
        "gpt_neox",
        without={
            "partial": {"rotary_pct": 1.0},
            "parallel residual": {"use_parallel_residual": False},
        },
        spare=gpt_neox_masks,
    ),
    Case("gpt_neox_sequential", without={"sequential": {"use_parallel_residual": True}}),
    Case("gpt_neox_tied_unbiased"),
    Case("bert", spare=position_ids),
    Case("roberta"),
    Case("xlm_roberta"),
    Case("bert_of_a_task", published=bert_of_a_task),
    # As the base model is published: positions and kinds of layers by numbers.
    Case(
        "modernbert",
        without={
            "window": {"local_attention": 40},
            "pattern": {"global_attn_every_n_layers": 2},
            "local base": {"local_rope_theta": 160000.0},
            "global base": {"global_rope_theta": 100.0},
        },
        published=of_a_task,
    ),
    # As transformers 5 writes it: kinds of layers listed, a rope for each.
    Case("modernbert_biases", without={"window": {"local_attention": 40}}),
]
