"""Saxml's own families, which transformers does not have: computed as kind `pax` does.

Of a folder, config.json names the model path, overrides.json its sizes, and tensors.json the
weights by their path in our module; golden.npz is made of them. Source: github.com/google/saxml
lm_cloud.py, github.com/google/paxml params/c4.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.golden.random_tensor import random_tensor, uniform
from tests.tools.golden import common
from tests.tools.golden.pax.cases import PaxCase
from tests.tools.golden.pax.model import logits_of

CASES = ("c4_spmd_gpt3", "lm_cloud", "lm_cloud_odd_heads")
TOKENS = 24
NO_CAP = 1e9


def make(given: Path, into: Path) -> None:
    """Write one folder. Raises AssertionError if a cap does nothing."""
    case, shapes = case_of(given), common.read_json(given / "tensors.json")
    drawn = uniform(f"prompt of {case.name}", TOKENS)
    prompt = 3 + (drawn * (case.vocab - 3)).astype(np.int64)
    weights = {name: random_tensor(name, tuple(shape)) for name, shape in shapes.items()}
    variables = variables_of(case, weights)
    found = logits_of(case, variables, prompt)
    if case.kind == "lm_cloud":
        for uncapped in (replace(case, attention_cap=NO_CAP), replace(case, logits_cap=NO_CAP)):
            other = logits_of(uncapped, variables, prompt)
            common.assert_changes(f"{case.name}: a cap", found, other)
    for file in ("config.json", "overrides.json"):
        common.write_json(into / file, common.read_json(given / file))
    told = "float64, pax/model.py, weights from random_tensor"
    common.write_case(
        into,
        shapes,
        common.how("families", case.name, told, ("numpy",)),
        prompt=prompt,
        logits=found.astype(np.float32),
    )


def case_of(folder: Path) -> PaxCase:
    path = common.read_json(folder / "config.json")["model_path"]
    texts = common.read_json(folder / "overrides.json")
    sizes = {key: int(text) for key, text in texts.items()}
    kind = "c4" if ".c4." in path else "lm_cloud"
    return PaxCase(
        name=folder.name,
        path=path,
        kind=kind,
        layers=sizes["NUM_LAYERS"],
        embed=sizes["MODEL_DIMS"],
        ffw=sizes["HIDDEN_DIMS"],
        heads=sizes["NUM_HEADS"],
        head_dim=sizes["DIMS_PER_HEAD"],
        vocab=sizes["VOCAB_SIZE"],
        positions=sizes.get("TRAINABLE_PE_MAX_SEQ_LEN", 0),
        epsilon=1e-5 if kind == "c4" else 1e-6,
    )


def variables_of(case: PaxCase, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights of our module as Praxis names and shapes its variables."""
    heads = (case.heads, case.head_dim)
    names = {
        "embedding.table": "softmax.logits_ffn.linear.w",
        "final_norm.bias": "final_ln.bias",
        "final_norm.scale": "final_ln.scale",
        "head.bias": "softmax.logits_ffn.bias.b",
        "positions.table": "position_emb.emb_var",
        "before_attention.bias": "layer_norm.bias",
        "before_attention.scale": "layer_norm.scale",
        "before_ffw.bias": "ff_layer.layer_norm.bias",
        "before_ffw.scale": "ff_layer.layer_norm.scale",
        "down.bias": "ff_layer.ffn_layer2.bias.b",
        "down.kernel": "ff_layer.ffn_layer2.linear.w",
        "out.bias": "self_attention.post.b",
        "out.kernel": "self_attention.post.w",
        "qkv.bias": "self_attention.combined_qkv.b",
        "qkv.kernel": "self_attention.combined_qkv.w",
        "up.bias": "ff_layer.ffn_layer1.bias.b",
        "up.kernel": "ff_layer.ffn_layer1.linear.w",
    }
    made = {}
    for name, weight in weights.items():
        part = ".".join(name.split(".")[-2:])
        layer = name.removesuffix(part).replace("layers.", "transformer.x_layers_")
        match part:
            case "embedding.table" | "down.kernel" | "up.kernel":
                weight = weight.T
            case "out.kernel":
                weight = weight.reshape(-1, *heads)
            case "qkv.bias":
                weight = weight.reshape(3, *heads)
            case "qkv.kernel":
                weight = weight.reshape(3, *heads, -1).transpose(0, 3, 1, 2)
            case _ if part.endswith(".scale"):
                weight = weight - np.float32(1)  # Praxis adds it
        made[layer + names[part]] = weight
    if case.kind == "lm_cloud":  # the factors of queries, which are 1 for these numbers
        for index in range(case.layers):
            path = f"transformer.x_layers_{index}.self_attention.per_dim_scale.per_dim_scale"
            made[path] = np.zeros(case.head_dim)
    return made
