"""Small random classifiers of texts, and transformers' logits.

A folder holds config.json, which is given; tensors.json (name -> shape) and golden.npz (prompt
i64[S], segments i64[S], logits f32[labels], how), which are made. Weights follow from the names
(see random_tensor).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.golden.random_tensor import random_tensor, uniform
from tests.tools.golden import common

FOLDER = common.GOLDEN / "classifiers"
CASES = [
    *("bert", "bert_labels", "roberta", "xlm_roberta", "modernbert"),
    "modernbert_first",  # the first token is what is classified; biases
    *("llama", "qwen2", "qwen3"),
]
TOKENS = 20
SEPARATOR = 3  # ends the first text of a pair, as in tests/model_server/tiny_bert.py


def make(name: str, into: Path) -> None:
    import torch

    config = common.read_json(FOLDER / name / "config.json")
    kind = config["architectures"][0]
    shapes = common.saved_shapes(kind, config)
    tensors = {key: random_tensor(key, shape) for key, shape in shapes.items()}
    prompt = 4 + (uniform(f"prompt of {name}", TOKENS) * 80).astype(np.int64)
    prompt[TOKENS // 2 - 1] = SEPARATOR
    segments = (np.arange(TOKENS) >= TOKENS // 2).astype(np.int64)
    if config["model_type"] == "bert":
        given = {"token_type_ids": torch.from_numpy(segments)[None]}
    else:
        given, segments = {}, 0 * segments
    with torch.no_grad():
        out = common.loaded(kind, config, tensors)(torch.from_numpy(prompt)[None], **given)
    common.write_json(into / name / "config.json", config)
    common.write_case(
        into / name,
        shapes,
        common.how("classifiers", name, "float32, eager attention"),
        prompt=prompt,
        segments=segments,
        logits=out.logits[0].numpy(),
    )
