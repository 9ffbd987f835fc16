"""Golden cases of families as whole checkpoints, with a small tokenizer."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from model_server.checkpoints.gguf.architectures import ARCHITECTURES
from model_server.checkpoints.text_part import text_config
from model_server.text.token_bytes import byte_alphabet
from tests.golden.random_tensor import random_tensor
from tests.model_server.checkpoints.tiny_folder import CONTROL, tokenizer_json, write_json

FAMILIES = Path(__file__).parents[2] / "golden" / "families"
# What GGUF, or llama.cpp for it, cannot say: refused when written, and by which words.
REFUSED = {
    "deepseek_v3_mscale": "attention_bias",
    "gpt_neox_tied_unbiased": "hidden_act",
    "gpt_oss": "swiglu_limit",
    "gpt_oss_no_layer_types": "attention_bias",
    "roberta": "cannot be written as GGUF",
    "xlm_roberta": "cannot be written as GGUF",
    "youtu_plain_queries": "attention_bias",
    "qwen3_moe_dense_layers": "mlp_only_layers",
    "qwen3_moe_sparse_step": "decoder_sparse_step",
    "smollm3_interval": "no_rope_layer_interval",
    "smollm3_window": "use_sliding_window",
    "olmo3_by_kind": "a rope of their own",
    "cohere_untied": "tie_word_embeddings",
    "phi_normed_heads": "qk_layernorm",
    "lfm2_wide_conv_biased": "conv_bias",
    "hunyuan": "of type 'dynamic' cannot be written",
    "hunyuan_rope_parameters": "of type 'dynamic' cannot be written",
}


def written_cases() -> list[str]:
    """Every case of an architecture of GGUF, less those that it cannot say."""
    written = (each for each in ARCHITECTURES.values() if each.more_metadata)
    known = {kind for each in written for kind in each.model_types}
    names = sorted(folder.name for folder in FAMILIES.iterdir())
    return [name for name in names if _kind_of(name) in known and name not in REFUSED]


@cache
def one_of_each_type() -> list[str]:
    """Of these the last by name: the more special ones."""
    return list({config_of(case)["model_type"]: case for case in written_cases()}.values())


def _kind_of(case: str) -> str | None:
    return text_config(config_of(case)).get("model_type")


def config_of(case: str) -> dict[str, Any]:
    return json.loads((FAMILIES / case / "config.json").read_text())


def weights_of(case: str) -> dict[str, np.ndarray]:
    shapes = json.loads((FAMILIES / case / "tensors.json").read_text())
    return {name: random_tensor(name, tuple(shape)) for name, shape in shapes.items()}


def write_case(case: str, folder: Path) -> Path:
    """As a Hugging Face folder."""
    folder.mkdir()
    config = config_of(case)
    write_json(folder / "config.json", config)
    # Where config.json does not say it beside the model_type, the tokenizer's settings do.
    settings = {} if "bos_token_id" in config else {"bos_token": CONTROL[1]}
    write_json(folder / "tokenizer_config.json", settings)
    (folder / "tokenizer.json").write_text(
        small_tokenizer(config.get("vocab_size", 97)), encoding="utf-8"
    )
    save_file(weights_of(case), folder / "model.safetensors")
    return folder


def small_tokenizer(size: int) -> str:
    """Of some bytes and one merge: the models' vocabularies are smaller than 256."""
    letters = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
    tokens = [*CONTROL, *letters[: size - 4], letters[0] + letters[1]]
    whole = json.loads(tokenizer_json())
    whole["added_tokens"] = whole["added_tokens"][:3]
    whole["model"]["vocab"] = {token: token_id for token_id, token in enumerate(tokens)}
    whole["model"]["merges"] = [letters[:2]]
    return json.dumps(whole)
