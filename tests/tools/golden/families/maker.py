"""Small random models of every family, and what transformers computes for them.

A folder holds config.json, which is given; tensors.json (name in published checkpoints -> shape)
and golden.npz (prompt i64[S]; logits f32[S, V], of an encoder hidden f32[S, D] and pooled f32[D];
how), which are made, and computed.npz, with tensors that transformers computes and saves.
transformers reads the same files that our loader will read, so names, layouts and the meaning of
config.json are its own and not ours: float32, eager attention. Weights are not stored: they follow
from the names (see random_tensor).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.golden.random_tensor import random_tensor, uniform
from tests.tools.golden import common
from tests.tools.golden.common import Shapes, changed
from tests.tools.golden.families import dense, experts, gemmas, gpts, multimodal, recurrent, saxml
from tests.tools.golden.families.case import Case

FOLDER = common.GOLDEN / "families"
# Encoders are made without a head, whatever their config.json says.
ENCODERS = {
    "bert": "BertModel",
    "modernbert": "ModernBertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
}
# Types that the code of another serves: only the automatic classes read their config.json.
SERVED_BY_OTHERS = ("iquestcoder", "sarvam_mla", "sarvam_moe")
LEAST_MARGIN = 1e-3  # between the last expert that is chosen and the first that is not

_TABLES = (dense, experts, gemmas, gpts, multimodal, recurrent)
ROWS = {case.name: case for table in _TABLES for case in table.CASES}
CASES = [*ROWS, *saxml.CASES]


class Reference(NamedTuple):
    """What transformers makes of a config with the weights of their names."""

    shapes: Shapes  # of tensors by the names of published checkpoints
    prompt: np.ndarray  # i64[S]
    found: np.ndarray  # f32[S, V] logits, of an encoder f32[S, D] hidden states
    computed: Mapping[str, np.ndarray]  # tensors that transformers computes


def make(name: str, into: Path) -> None:
    """Write one folder. Raises AssertionError for a case that proves too little."""
    if name in saxml.CASES:
        return saxml.make(FOLDER / name, into / name)
    case, config = ROWS[name], common.read_json(FOLDER / name / "config.json")
    made = reference_of(case, config)
    for feature, changes in case.without.items():
        other, _ = _run(case, changed(config, changes), made.shapes, made.prompt)
        common.assert_changes(f"{name}: {feature}", made.found, other)
    write(case, config, made, into / name)


def reference_of(case: Case, config: Mapping[str, Any]) -> Reference:
    """Raises AssertionError if in every prompt some choice of experts is close, and whatever
    transformers raises for a config."""
    saved = common.saved_shapes(_class_of(config), {**config, **case.known_as})
    made = {
        case.published(key): shape
        for key, shape in saved.items()
        if not key.endswith((*case.computed, *case.left_out))
    }
    shapes = case.stored(made)
    prompt, found = _first_clear(case, config, shapes)
    return Reference(shapes, prompt, found, _computed(case, config, shapes))


def write(case: Case, config: Mapping[str, Any], made: Reference, folder: Path) -> None:
    outputs = {"logits": made.found}
    if config["model_type"] in ENCODERS:
        mean = made.found.mean(0)
        outputs = {"hidden": made.found, "pooled": mean / np.linalg.norm(mean)}
    told = f"{_class_of(config)}, float32, eager attention, weights from random_tensor"
    common.write_json(folder / "config.json", config)
    common.write_case(
        folder,
        made.shapes | case.spare(config),
        common.how("families", case.name, told),
        prompt=made.prompt,
        **outputs,
    )
    if made.computed:
        np.savez_compressed(folder / "computed.npz", allow_pickle=False, **made.computed)


def _class_of(config: Mapping[str, Any]) -> str:
    if config["model_type"] in SERVED_BY_OTHERS:
        return "AutoModelForCausalLM"
    return ENCODERS.get(config["model_type"]) or str(config["architectures"][0])


def _first_clear(
    case: Case, config: Mapping[str, Any], shapes: Shapes
) -> tuple[np.ndarray, np.ndarray]:
    """The first of many prompts in which no choice of experts is close, and its result."""
    span = config.get("text_config", config)["vocab_size"] - 10  # without control tokens
    span = span if case.below is None else case.below - 3
    for attempt in range(99):
        drawn = uniform(f"prompt {attempt} of {case.name}", case.tokens)
        prompt = 3 + (drawn * span).astype(np.int64)
        found, margin = _run(case, config, shapes, prompt)
        if margin > LEAST_MARGIN:
            return prompt, found
    raise AssertionError(f"{case.name}: in every prompt some experts are within {LEAST_MARGIN}")


def _run(
    case: Case, config: Mapping[str, Any], shapes: Shapes, prompt: np.ndarray
) -> tuple[np.ndarray, float]:
    """Logits (of an encoder: hidden states) and the closest routing decision."""
    import torch

    from tests.tools.golden.families.routing import smallest_margin

    model = loaded(case, config, shapes)
    with torch.no_grad(), smallest_margin(model) as margins:
        out = model(torch.from_numpy(prompt)[None])
    result = out.last_hidden_state if config["model_type"] in ENCODERS else out.logits
    return result[0].numpy(), min(margins, default=float("inf"))


def loaded(case: Case, config: Mapping[str, Any], shapes: Shapes) -> Any:
    spare = case.spare(config)
    return common.loaded(
        _class_of(config),
        {**config, **case.known_as},
        {name: random_tensor(name, shape) for name, shape in (shapes | spare).items()},
        spare=frozenset({*spare, *map(_fused, spare)}),
        computed=(*case.computed, *case.left_out),
    )


def _computed(case: Case, config: Mapping[str, Any], shapes: Shapes) -> dict[str, np.ndarray]:
    """What transformers saves of the tensors that it computes."""
    saved = common.saved_tensors(loaded(case, config, shapes)) if case.computed else {}
    return {name: tensor for name, tensor in saved.items() if name.endswith(case.computed)}


def _fused(name: str) -> str:
    """What transformers calls the tensors of all experts together, once it has read them."""
    name = re.sub(r"\.experts\.\d+\.(gate|up)_proj\.weight$", ".experts.gate_up_proj", name)
    return re.sub(r"\.experts\.\d+\.down_proj\.weight$", ".experts.down_proj", name)
