"""What PEFT makes of the models of `families` by adapters of every kind that can be merged.

A case is NAME.json: `base`, the case of `families`; `config`, the adapter_config.json; `tensors`,
the adapter's names and shapes, whose numbers are `random_tensor`'s; and `merged`, by name, what
changes in the base when PEFT merges the adapter, or of its embedding and head in use: the shape,
and the products of some rows with `direction`, of each tensor that differs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.golden.random_tensor import random_tensor, uniform
from tests.tools.golden import common
from tests.tools.golden.converted import tensors_of

FAMILIES = common.GOLDEN / "families"
ROWS = 12  # of a tensor that are kept
TABLES = ("lm_head.weight", "model.embed_tokens.weight", "transformer.wte.weight", "wte.weight")
ATTENTION = ["q_proj", "v_proj"]
# By case: the base, and the settings of PEFT's LoraConfig.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dora": (
        "qwen2_untied_mqa",
        {
            "target_modules": "all-linear",
            "use_dora": True,
            "rank_pattern": {r"layers\.1\..*_proj": 2},
            "alpha_pattern": {r".*\.(gate|up)_proj": 3, "layers.1.mlp.down_proj": 5},
        },
    ),
    "dora_input_major": ("gpt2", {"target_modules": ["c_attn"], "use_dora": True}),
    "embedding_rooted": (
        "llama_tied",
        {"target_modules": [*ATTENTION, "embed_tokens"], "use_rslora": True},
    ),
    "experts": (
        "qwen3_moe",
        {
            "target_modules": ATTENTION,
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            "use_rslora": True,
        },
    ),
    "saved_modules": (
        "qwen2_untied_mqa",
        {
            "target_modules": ATTENTION,
            "modules_to_save": ["lm_head", "embed_tokens", "norm"],
            "bias": "lora_only",
        },
    ),
    "saved_embedding_of_a_tied_pair": (
        "llama_tied",
        {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens"]},
    ),
    "saved_tied_pair": (
        "llama_tied",
        {
            "target_modules": ATTENTION,
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ),
    "saved_head_of_a_tied_pair": (
        "llama_tied",
        {"target_modules": ATTENTION, "modules_to_save": ["lm_head"]},
    ),
    "tokens_of_a_tied_pair": (
        "qwen3_tied",
        {"target_modules": ATTENTION, "trainable_token_indices": [3, 90, 7]},
    ),
    "trained_bias": ("qwen2_untied_mqa", {"target_modules": ATTENTION, "lora_bias": True}),
}


def make(name: str, into: Path) -> None:
    """Write into/NAME.json."""
    import peft

    base, settings = CASES[name]
    config = common.read_json(FAMILIES / base / "config.json")
    tensors = tensors_of(base)
    kind = config["architectures"][0]

    def loaded() -> Any:
        return common.loaded(kind, config, tensors)

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "adapter"
        asked = peft.LoraConfig(r=3, lora_alpha=7, task_type="CAUSAL_LM", **settings)
        peft.get_peft_model(loaded(), asked).save_pretrained(folder)
        stored = folder / "adapter_model.safetensors"
        shapes = {each: value.shape for each, value in sorted(load_file(stored).items())}
        save_file(numbers_of(shapes, tensors), stored, {"format": "pt"})
        written = common.read_json(folder / "adapter_config.json")
        adapted = peft.PeftModel.from_pretrained(loaded(), folder).eval()
        ends = ends_of(adapted, tensors)
        after = common.saved_tensors(adapted.merge_and_unload()) | ends
    before = {"lm_head.weight": head_of(tensors)} | common.saved_tensors(loaded())
    changes = {
        each: told(value)
        for each, value in sorted(after.items())
        if not np.array_equal(value, before[each])
    }
    into.mkdir(parents=True, exist_ok=True)
    parts = {
        "how": common.how("adapters", name, f"peft {peft.__version__}, merged"),
        "base": base,
        "config": {key: value for key, value in written.items() if value is not None},
        "tensors": shapes,
        "merged": changes,
    }
    (into / f"{name}.json").write_text(common.lines(parts))


def numbers_of(
    shapes: Mapping[str, Sequence[int]], base: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return an adapter's tensors: an embedding that is saved with its factors is the base's own,
    and a head that is saved with an embedding equals it where the base has one for both."""
    made = {name: random_tensor(name, tuple(shape)) for name, shape in shapes.items()}
    head, table = (f"base_model.model.{name}.weight" for name in ("lm_head", "model.embed_tokens"))
    for name in made:
        if name.endswith(".base_layer.weight"):
            own = name.removeprefix("base_model.model.").replace(".base_layer", "")
            made[name] = base[own]
    if head in made and table in made and "lm_head.weight" not in base:
        made[head] = made[table]
    return made


def ends_of(model: Any, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the head and the embedding as they are used: merging changes both of a tied pair."""
    import torch

    table = next(name for name in TABLES[1:] if name in tensors)
    vocab, width = tensors[table].shape
    with torch.inference_mode():
        head = model.get_output_embeddings()(torch.eye(width)).T
        rows = model.get_input_embeddings()(torch.arange(vocab))
    named = table if table.startswith("model.") else "transformer.wte.weight"
    return {TABLES[0]: head.numpy(), named: rows.numpy()}


def head_of(tensors: dict[str, np.ndarray]) -> np.ndarray:
    """Return the head of a base, which may be its embedding."""
    return next(tensors[name] for name in TABLES if name in tensors)


def told(numbers: np.ndarray) -> list[Any]:
    """Return the shape, and the products of evenly spread rows with `direction`."""
    rows = numbers.reshape(-1, numbers.shape[-1])
    chosen = np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int)
    made = rows[chosen].astype(np.float64) @ uniform("direction", rows.shape[1])
    return [list(numbers.shape), [round(each, 6) for each in made.tolist()]]
