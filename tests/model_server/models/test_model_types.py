"""Every model type of transformers through every family: answered as the reference, or refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.recipe import Recipe
from model_server.models.registry import families, make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import F32
from tests.model_server.models.model_types import configs, output_of, prompt, write_checkpoint
from tests.model_server.tiny import logits_of

FAMILIES = [family.path for family in families()]


def taking(model_type: str) -> list[str]:
    """Families that accept the type's config.json by their name."""
    return [family for family in FAMILIES if _accepts(family, configs()[model_type])]


def _accepts(family: str, config: dict[str, Any]) -> bool:
    try:
        make_recipe(family, config, F32)
    except CheckpointError:
        return False
    return True


TAKEN = [(model_type, family) for model_type in configs() for family in taking(model_type)]


def test_all_types_and_families_are_tried() -> None:
    assert len(configs()) > 700
    own = {name for family in families() for name in family.model_types}
    # Outer configs of checkpoints with images are read as the text part in them; transformers knows
    # Kimi K2 as a DeepSeek-V3.
    others = {"gemma3", "gemma3n", "gemma4", "llama4", "llava", "mistral3", "qwen3_5"}
    others |= {
        "kimi_k2",
        "qwen3_5_moe",
        "qwen2_audio",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
    }
    # Heads of the other configs are too small for the usual sections of these.
    others |= {"qwen2_vl_text", "qwen2_5_vl_text"}
    # Sizes that transformers fills in where a file has none, and with which it runs nothing either.
    others |= {"deepseek_v2", "dots1", "gemma3n_text"}
    # Groups of experts, which are not computed.
    others |= {"mistral4"}
    assert own - {model_type for model_type, _ in TAKEN} <= others


# A family's own types, of which test_families.py has golden cases.
OWN = {(model_type, family.path) for family in families() for model_type in family.model_types}


@pytest.mark.parametrize(
    ("model_type", "family"),
    [pytest.param(*each, marks=[pytest.mark.extended] * (each in OWN)) for each in TAKEN],
)
def test_a_checkpoint_that_a_family_takes_is_answered_as_by_the_reference(
    model_type: str, family: str, tmp_path: Path
) -> None:
    write_checkpoint(model_type, tmp_path)
    try:
        module, recipe = _load(family, tmp_path)
    except CheckpointError:
        return  # by its tensors
    kind = "hidden" if isinstance(recipe, EmbedRecipe) else "logits"
    wanted = output_of(model_type, kind)
    assert wanted is not None, f"{family} serves {model_type}, which the reference did not run"
    found = _hidden(module) if isinstance(recipe, EmbedRecipe) else _logits(module, recipe)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)


def _load(family: str, folder: Path) -> tuple[Any, Recipe | EmbedRecipe]:
    with closing(open_checkpoint(str(folder))) as checkpoint:
        recipe = make_recipe(family, checkpoint.config, F32)
        module = recipe.blueprint()
        needed = without_prefixes(checkpoint, recipe.unused)
        return module.assemble(read_weights(module.declarations, needed, lambda _: None)), recipe


def _logits(module: Any, recipe: Recipe) -> np.ndarray:
    def run(module: Any) -> jax.Array:
        return logits_of(module, recipe, prompt())

    return np.asarray(jax.jit(run)(module))


def _hidden(module: Any) -> np.ndarray:
    def run(module: Any) -> jax.Array:
        return module(jnp.asarray(prompt()[None], jnp.int32), jnp.asarray([len(prompt())]))

    return np.asarray(jax.jit(run)(module))[0]
