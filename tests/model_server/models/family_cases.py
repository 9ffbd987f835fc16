"""The golden cases of every family, as checkpoints on disk and as models on devices.

A case is a folder of tests/golden/families (see tools/golden/families); its weights follow from
their names, so that a real Hugging Face folder can be written for it in a moment. The name of a
case may be the path of such a folder elsewhere (tools/random_configs).
"""

from __future__ import annotations

import atexit
import functools
import json
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.quantized import as_bytes
from model_server.models.weights.sharding import DEFAULT_RULES, Rules, layout_of
from model_server.models.weights.weight import Blueprint
from tests.golden.random_tensor import random_tensor

FAMILIES = Path(__file__).parents[2] / "golden" / "families"
F32 = {"DTYPE": '"float32"'}
# Of families of which the first case by name is not the one with most that is their own.
TELLING = {"llama": "llama_llama3_biases", "mistral": "mistral_window", "qwen2": "qwen2_window"}


def case_names() -> list[str]:
    """Every case there is."""
    return sorted(folder.name for folder in FAMILIES.iterdir())


def first_of_each_family() -> list[str]:
    """One case per model_type and per Saxml class: the first by name, or the most telling."""
    first = dict(TELLING)
    for name in case_names():
        config = config_of(name)
        first.setdefault(config.get("model_type") or config["model_path"], name)
    return list(first.values())


def is_encoder(name: str) -> bool:
    return "hidden" in golden_of(name)


def config_of(name: str) -> dict[str, Any]:
    return json.loads((FAMILIES / name / "config.json").read_text())


def golden_of(name: str) -> Mapping[str, np.ndarray]:
    """prompt i64[S], and logits f32[S, V] or hidden f32[S, D] and pooled f32[D]."""
    return np.load(FAMILIES / name / "golden.npz")


@functools.cache
def checkpoint_of(name: str) -> Path:
    """A Hugging Face folder with the case's random weights, kept as long as this process."""
    folder = _everything() / name.replace("/", "_")
    folder.mkdir()
    config = {"model_type": "saxml"} | config_of(name)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors_of(name), folder / "model.safetensors", {"format": "pt"})
    return folder


def tensors_of(name: str) -> dict[str, np.ndarray]:
    """Return a case's weights by the names of its checkpoint."""
    tensors = {n: random_tensor(n, shape) for n, shape in _shapes(name).items()}
    computed = FAMILIES / name / "computed.npz"
    return tensors | (dict(np.load(computed)) if computed.exists() else {})


def load(
    name: str, mesh_shape: tuple[int, int, int] = (1, 1, 1), rules: Rules = DEFAULT_RULES
) -> tuple[Any, Recipe]:
    """The model with its weights on a mesh, and its recipe."""
    module, leaves, recipe = load_leaves(name, mesh_shape, rules)
    return module.assemble(leaves), recipe


def load_leaves(
    name: str, mesh_shape: tuple[int, int, int] = (1, 1, 1), rules: Rules = DEFAULT_RULES
) -> tuple[Blueprint, list[Any], Recipe]:
    """The model's blueprint, weights and recipe: the way the server loads them.

    Saxml's classes take no checkpoints; their weights are put where their declarations look.
    """
    layout, path = layout_of(mesh_shape, rules).placed(), config_of(name).get("model_path")
    with closing(open_checkpoint(str(checkpoint_of(name)))) as checkpoint:
        config = None if path else checkpoint.config
        recipe = make_recipe(path or "auto", config, F32 | overrides_of(name))
        assert isinstance(recipe, Recipe)
        module = recipe.blueprint(layout, checkpoint)
        needed = without_prefixes(checkpoint, recipe.unused)
        leaves = read_weights(module.declarations, needed, lambda _: None, layout)
    return module, list(leaves), recipe


def load_encoder(name: str) -> Any:
    """The encoder with its weights: the way the server loads them."""
    with closing(open_checkpoint(str(checkpoint_of(name)))) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, F32)
        assert isinstance(recipe, EmbedRecipe)
        module = recipe.blueprint()
        needed = without_prefixes(checkpoint, recipe.unused)
        return module.assemble(read_weights(module.declarations, needed, lambda _: None))


def weights_of(path: Path) -> dict[str, np.ndarray]:
    """Return the weights of a checkpoint of any format, by their path in the module."""
    return module_of(path)[0]


def load_whole(path: Path, **overrides: str) -> tuple[Any, Blueprint, list[Any]]:
    """Return the recipe of a checkpoint of any format, its module and the leaves of its weights."""
    with closing(open_checkpoint(str(path))) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, F32 | overrides)
        encoder = isinstance(recipe, EmbedRecipe)
        module = recipe.blueprint() if encoder else recipe.blueprint(checkpoint=checkpoint)
        needed = without_prefixes(checkpoint, recipe.unused)
        leaves = read_weights(module.declarations, needed, lambda _: None)
        return recipe, module, [as_bytes(leaf) for leaf in leaves]


def module_of(path: Path) -> tuple[dict[str, np.ndarray], Any]:
    """Return the weights by their path in the module, and the module with them."""
    _, module, leaves = load_whole(path)
    weights = {
        each.path: np.asarray(leaf) for each, leaf in zip(module.declarations, leaves, strict=True)
    }
    return weights, module.assemble([jnp.asarray(leaf) for leaf in leaves])


def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    stored = json.loads((FAMILIES / name / "tensors.json").read_text())
    return {tensor: tuple(shape) for tensor, shape in stored.items()}


def overrides_of(name: str) -> dict[str, str]:
    """Overrides of the publish, as JSON texts."""
    path = FAMILIES / name / "overrides.json"
    return json.loads(path.read_text()) if path.exists() else {}


@functools.cache
def _everything() -> Path:
    """Removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="sax-families-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
