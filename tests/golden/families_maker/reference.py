"""What transformers computes for a case: f32, eager attention, one thread of one CPU.

transformers reads the same files that our loader will read, so names, layouts and the meaning of
config.json are its own and not ours.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.golden.families_maker.case import Case, Shapes
from tests.golden.families_maker.routing import smallest_margin
from tests.golden.random_tensor import random_tensor, uniform

ENCODERS = ("bert", "modernbert", "roberta", "xlm-roberta")
WITH_IMAGES = (
    "llava",
    "mistral3",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
)  # not among the causal models
LEAST_CHANGE = 1e-2  # of the logits when a feature is switched off, relative to the largest
LEAST_MARGIN = 1e-3  # between the last expert that is chosen and the first that is not


def prompt_of(case: Case, attempt: int = 0) -> np.ndarray:
    """i64[S]: random tokens, none of the first and the last, which are control tokens."""
    span = case.config.get("text_config", case.config)["vocab_size"] - 10
    return 3 + (uniform(f"prompt {attempt} of {case.name}", case.tokens) * span).astype(np.int64)


def tensors_of(case: Case) -> Shapes:
    """The tensors of a checkpoint, as published ones name them."""
    with tempfile.TemporaryDirectory() as folder:
        _write_config(folder, case.config | dict(case.known_as))
        config = transformers.AutoConfig.from_pretrained(folder)
        _auto(case).from_config(config).save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            names = [name for name in sorted(file.keys()) if not name.endswith(case.computed)]
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    return case.stored({case.published(name): shape for name, shape in shapes.items()})


def outputs_of(case: Case, shapes: Shapes) -> dict[str, np.ndarray]:
    """What golden.npz holds. Raises AssertionError for a case that proves too little."""
    prompt, found = _first_clear(case, shapes)
    for feature in case.without:
        other, _ = _run(case, case.config_without(feature), shapes, prompt)
        changed = np.abs(other - found).max() / np.abs(found).max()
        assert changed > LEAST_CHANGE, f"{case.name}: {feature} changes the logits by {changed}"
    if case.config["model_type"] in ENCODERS:
        mean = found.mean(0)
        return {"prompt": prompt, "hidden": found, "pooled": mean / np.linalg.norm(mean)}
    return {"prompt": prompt, "logits": found}


def how(case: Case) -> str:
    """How the numbers came about, stored beside them."""
    return (
        f"python -m tests.golden.make_families {case.name}; torch {torch.__version__} (CPU), "
        f"transformers {transformers.__version__}, {case.config['architectures'][0]}, float32, "
        "eager attention, weights from random_tensor"
    )


def _first_clear(case: Case, shapes: Shapes) -> tuple[np.ndarray, np.ndarray]:
    """The first of many prompts in which no choice of experts is close, and its result."""
    for attempt in range(99):
        prompt = prompt_of(case, attempt)
        found, margin = _run(case, case.config, shapes, prompt)
        if margin > LEAST_MARGIN:
            return prompt, found
    raise AssertionError(f"{case.name}: in every prompt some experts are within {LEAST_MARGIN}")


def _run(
    case: Case, config: Mapping[str, Any], shapes: Shapes, prompt: np.ndarray
) -> tuple[np.ndarray, float]:
    """Logits (of an encoder: hidden states) and the closest routing decision."""
    model = _load(case, config, shapes)
    with torch.no_grad(), smallest_margin(model) as margins:
        out = model(torch.from_numpy(prompt)[None])
    result = out.last_hidden_state if config["model_type"] in ENCODERS else out.logits
    return result[0].numpy(), min(margins, default=float("inf"))


def _load(case: Case, config: Mapping[str, Any], shapes: Shapes) -> Any:
    """The model over its random weights. Raises AssertionError unless every tensor is used."""
    spare = case.spare(config)
    tensors = {name: random_tensor(name, shape) for name, shape in (shapes | spare).items()}
    with tempfile.TemporaryDirectory() as folder:
        _write_config(folder, {**config, **case.known_as})
        save_file(tensors, Path(folder) / "model.safetensors", {"format": "pt"})
        model, info = _auto(case).from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    assert all(name.endswith(case.computed) for name in info["missing_keys"]), (
        f"{case.name}: {info}"
    )
    assert not info["mismatched_keys"], f"{case.name}: {info}"
    assert set(info["unexpected_keys"]) <= {*spare, *map(_fused, spare)}, f"{case.name}: {info}"
    return model.eval()


def _fused(name: str) -> str:
    """What transformers calls the tensors of all experts together, once it has read them."""
    name = re.sub(r"\.experts\.\d+\.(gate|up)_proj\.weight$", ".experts.gate_up_proj", name)
    return re.sub(r"\.experts\.\d+\.down_proj\.weight$", ".experts.down_proj", name)


def _auto(case: Case) -> Any:
    """Of an encoder the bare model, of a decoder the one with logits."""
    kind = case.config["model_type"]
    if kind == "qwen2_audio":
        return transformers.AutoModelForMultimodalLM
    if kind in ENCODERS:
        return transformers.AutoModel
    if kind in WITH_IMAGES:
        return transformers.AutoModelForImageTextToText
    if kind == "mistral4":  # transformers 5.23 lists it as a part of Mistral 3 only
        transformers.AutoModelForCausalLM.register(
            transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True
        )
    return transformers.AutoModelForCausalLM


def _write_config(folder: str, config: Mapping[str, Any]) -> None:
    (Path(folder) / "config.json").write_text(json.dumps(config))
