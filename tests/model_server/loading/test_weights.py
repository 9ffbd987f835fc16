"""Weights come from the checkpoint or from a seed, and what does not match is named."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.random_weights import random_weights
from model_server.loading.weights import read_weights
from model_server.models.registry import make_recipe
from model_server.models.weights.weight import Blueprint
from sax.errors import CheckpointError
from sax.types import Progress
from tests.model_server.models.family_cases import checkpoint_of


def tied() -> Path:
    return checkpoint_of("llama_tied")


def module_of(folder: Path) -> Blueprint:
    config = json.loads((folder / "config.json").read_text())
    return make_recipe("llama", config, {"DTYPE": '"float32"'}).blueprint()


def changed_copy(folder: Path, to: Path, **changes: np.ndarray | None) -> Path:
    """A copy of a checkpoint with tensors replaced, added or (None) left out."""
    tensors = load_file(folder / "model.safetensors") | {
        name.replace("__", "."): tensor for name, tensor in changes.items()
    }
    save_file({n: t for n, t in tensors.items() if t is not None}, to / "model.safetensors")
    (to / "config.json").write_text((folder / "config.json").read_text())
    return to


def read(folder: Path) -> list[np.ndarray]:
    with closing(open_checkpoint(str(folder))) as checkpoint:
        declared = module_of(tied()).declarations
        return [np.asarray(leaf) for leaf in read_weights(declared, checkpoint, lambda _: None)]


def test_joined_tensors_lie_one_after_the_other() -> None:
    stored = load_file(tied() / "model.safetensors")
    declared = module_of(tied()).declarations
    index = next(
        i for i, d in enumerate(declared) if d.path == "layers.1.attention.qkv.linears.0.kernel"
    )
    parts = [stored[f"model.layers.1.self_attn.{n}_proj.weight"] for n in "qkv"]
    np.testing.assert_array_equal(read(tied())[index], np.concatenate(parts))


def test_progress_counts_bytes_up_to_the_total() -> None:
    seen: list[Progress] = []
    declared = module_of(tied()).declarations
    with closing(open_checkpoint(str(tied()))) as checkpoint:
        read_weights(declared, checkpoint, seen.append)
    assert seen[0].done == 0
    assert seen[-1].done == seen[-1].total == sum(d.bytes for d in declared)
    assert [p.done for p in seen] == sorted(p.done for p in seen)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = changed_copy(tied(), tmp_path, model__norm__weight=None)
    with pytest.raises(CheckpointError, match=r"lacks model\.norm\.weight"):
        read(folder)


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    folder = changed_copy(tied(), tmp_path, model__adapter__weight=np.ones(3, np.float32))
    with pytest.raises(CheckpointError, match=r"does not use: model\.adapter\.weight"):
        read(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = changed_copy(tied(), tmp_path, model__norm__weight=np.ones(7, np.float32))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is \[7\].*says \["):
        read(folder)


def test_random_weights_follow_the_seed_and_the_path() -> None:
    declared = module_of(tied()).declarations
    first = random_weights(declared, 1, lambda _: None)
    again = random_weights(declared, 1, lambda _: None)
    other = random_weights(declared, 2, lambda _: None)
    same = [bool(jnp.array_equal(a, b)) for a, b in zip(first, again, strict=True)]
    assert all(same)
    assert not all(bool(jnp.array_equal(a, b)) for a, b in zip(first, other, strict=True))
