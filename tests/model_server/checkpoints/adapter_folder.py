"""LoRA adapters of a few kilobytes in PEFT's format, and plain merges of them into their base."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.opening import open_checkpoint

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
_WEIGHT = re.compile(r"(?P<module>.*\.(?P<kind>\w+))\.weight")


def write_adapter(
    folder: Path,
    base: Path,
    *,
    seed: int = 0,
    rank: int = 2,
    alpha: float = 8.0,
    targets: Sequence[str] = ALL,
    spread: float = 0.5,
    dora: bool = False,
    **config: Any,
) -> Path:
    """Write an adapter of random factors for the linear layers of `base` that end in `targets`.

    dora: give each row a length, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng, tensors = np.random.default_rng(seed), {}
    for name, weight in load_file(base / "model.safetensors").items():
        found = _WEIGHT.fullmatch(name)
        if found is None or found["kind"] not in targets:
            continue
        outputs, inputs = weight.shape
        module = f"base_model.model.{found['module']}"
        down = rng.normal(size=(rank, inputs)) * spread
        up = rng.normal(size=(outputs, rank)) * spread
        tensors[f"{module}.lora_A.weight"] = down.astype(np.float32)
        tensors[f"{module}.lora_B.weight"] = up.astype(np.float32)
        if dora:
            lengths = rng.uniform(0.5, 2.0, outputs) * np.linalg.norm(weight, axis=1)
            tensors[f"{module}.lora_magnitude_vector"] = lengths.astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"use_dora": dora} | config
    write_config(folder, rank=rank, alpha=alpha, targets=targets, **config)
    return folder


def write_demo_adapter(folder: Path, gguf: Path, seed: int) -> Path:
    """Write an adapter of rank 2 that changes what the demo model says."""
    folder.mkdir()
    rng, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    base = open_checkpoint(str(gguf))
    for name in base.names():
        module = name.removesuffix(".weight")
        if module.endswith(("q_proj", "v_proj")):
            outputs, inputs = base.shape(name)
            for letter, shape in (("A", (2, inputs)), ("B", (outputs, 2))):
                made = rng.normal(scale=0.1, size=shape).astype(np.float32)
                tensors[f"base_model.model.{module}.lora_{letter}.weight"] = made
    base.close()
    save_file(tensors, folder / "adapter_model.safetensors")
    write_config(folder, rank=2, alpha=4.0, targets=("q_proj", "v_proj"))
    return folder


def write_config(
    folder: Path, *, rank: int, alpha: float, targets: Sequence[str], **config: Any
) -> None:
    """Write adapter_config.json as PEFT does."""
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
        "modules_to_save": None,
        "use_dora": False,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))


def merged(folder: Path, base: Path, adapter: Path) -> Path:
    """Write `base` with W + alpha / r * B @ A in place of every adapted W, in its own length."""
    shutil.copytree(base, folder)
    config = json.loads((adapter / "adapter_config.json").read_text())
    factors = load_file(adapter / "adapter_model.safetensors")
    weights = load_file(base / "model.safetensors")
    for name, down in factors.items():
        if name.endswith(".lora_A.weight"):
            up = factors[name.replace("lora_A", "lora_B")]
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            scale = config["lora_alpha"] / down.shape[0]
            whole = weights[f"{module}.weight"] + scale * up @ down
            lengths = factors.get(name.replace("lora_A.weight", "lora_magnitude_vector"))
            if lengths is not None:
                whole *= (lengths / np.linalg.norm(whole, axis=1))[:, None]
            weights[f"{module}.weight"] = whole.astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    return folder
