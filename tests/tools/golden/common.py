"""What the makers share: files that people can read, checkpoints of random weights, versions."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

GOLDEN = Path(__file__).parents[2] / "golden"
LEAST_CHANGE = 1e-2  # of the logits when a feature is switched off, relative to the largest
Shapes = dict[str, tuple[int, ...]]
Changes = Mapping[str, Any]  # path of a key, as in "text_config.head_dim" -> value


def how(kind: str, name: str, rest: str, packages: tuple[str, ...] = ()) -> str:
    """How numbers came about, stored beside them."""
    named = [f"{package} {version(package)}" for package in packages or ("torch", "transformers")]
    on = [f"{text} (CPU)" if text.startswith("torch ") else text for text in named]
    return f"python -m tests.tools.golden {kind} {name}; {', '.join([*on, rest])}"


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def lines(parts: dict[str, Any]) -> str:
    """Return JSON with a line for each key and each key within."""

    def within(value: Any) -> str:
        if not isinstance(value, dict) or not value:
            return json.dumps(value)
        return "{\n" + ",\n".join(f'  "{k}": {json.dumps(v)}' for k, v in value.items()) + "\n }"

    return "{\n" + ",\n".join(f' "{k}": {within(v)}' for k, v in parts.items()) + "\n}\n"


def write_case(folder: Path, shapes: Shapes, how: str, **arrays: Any) -> None:
    """Write tensors.json and golden.npz."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"  {json.dumps(name)}: {json.dumps(shapes[name])}" for name in sorted(shapes)]
    (folder / "tensors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    np.savez_compressed(folder / "golden.npz", how=np.asarray(how), **arrays)


def changed(config: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Return the config with other values at these paths."""
    made = deepcopy(dict(config))
    for path, value in changes.items():
        *outer, key = path.split(".")
        place = made
        for each in outer:
            place = place[int(each) if isinstance(place, list) else each]
        place[key] = value
    return made


def assert_changes(what: str, found: np.ndarray, other: np.ndarray) -> None:
    """Refuse a case in which a feature can be switched off and hardly any number changes."""
    change = np.abs(other - found).max() / np.abs(found).max()
    assert change > LEAST_CHANGE, f"{what} changes the logits by {change}"


def on_one_thread() -> None:
    """Let torch and transformers compute on one thread and say nothing."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")


def shapes_in(path: Path) -> Shapes:
    with safe_open(path, "np") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


def saved_shapes(kind: str, config: Mapping[str, Any]) -> Shapes:
    """The tensors of a checkpoint as this class of transformers writes it."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        write_json(Path(folder) / "config.json", config)
        read = transformers.AutoConfig.from_pretrained(folder)
        of = getattr(transformers, kind)
        made = of.from_config(read) if kind.startswith("Auto") else of._from_config(read)
        made.save_pretrained(folder)
        return shapes_in(Path(folder) / "model.safetensors")


def saved_tensors(model: Any) -> dict[str, np.ndarray]:
    """The tensors that a model of transformers writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def loaded(
    kind: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    spare: frozenset[str] = frozenset(),
    computed: tuple[str, ...] = (),
) -> Any:
    """A model over these weights, read as from a published checkpoint.

    Raises AssertionError unless every tensor is used but the spare ones, and none is missing but
    those with the computed endings.
    """
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        write_json(Path(folder) / "config.json", config)
        save_file(dict(tensors), Path(folder) / "model.safetensors", {"format": "pt"})
        model, info = getattr(transformers, kind).from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    assert all(name.endswith(computed) for name in info["missing_keys"]), f"{kind}: {info}"
    assert not info["mismatched_keys"], f"{kind}: {info}"
    assert set(info["unexpected_keys"]) <= spare, f"{kind}: {info}"
    return model.eval()
