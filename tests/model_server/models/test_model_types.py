"""Every model type of transformers through every family: answered as the reference, or refused."""

from __future__ import annotations

import functools
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


@functools.cache
def taken() -> list[tuple[str, str]]:
    """Each model type with each family that accepts its config.json by the family's name."""
    paths = [family.path for family in families()]
    types = configs().items()
    return [(name, path) for name, config in types for path in paths if _accepts(path, config)]


def _accepts(family: str, config: dict[str, Any]) -> bool:
    try:
        make_recipe(family, config, F32)
    except CheckpointError:
        return False
    return True


def test_all_types_and_families_are_tried() -> None:
    assert len(configs()) > 700
    own = {name for family in families() for name in family.model_types}
    # Outer configs of checkpoints with images are read as the text part in them; transformers knows
    # Kimi K2 as a DeepSeek-V3.
    others = {
        "dots3_note",
        "gemma3",
        "gemma3n",
        "gemma4",
        "glm5_next",
        "granite_speech",
        "granite_speech_plus",
        "llama4",
        "llava",
        "mistral3",
        "qwen3_5",
    }
    others |= {"exaone4_5", "exaone4_5_text", "kimi_k25", "minimax_m3_vl", "step3p7"}
    # Groups of a single expert, of which the reference takes the best two.
    others |= {"bailing_hybrid"}
    # It has only a config of these, served by the code of others.
    others |= {"sarvam_mla", "sarvam_moe"}
    others |= {
        "kimi_k2",
        "mimo",  # nor does it know MiMo, which is a Qwen2 with a layer that drafts
        "qwen3_5_moe",
        "qwen2_audio",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
        "voxtral",
    }
    others |= {"qwen2_5_omni", "qwen2_5_omni_thinker", "qwen3_omni_moe", "qwen3_omni_moe_thinker"}
    # Heads of the other configs are too small for the usual sections of these.
    others |= {"qwen2_vl_text", "qwen2_5_omni_text", "qwen2_5_vl_text"}
    # Sizes that transformers fills in where a file has none, and with which it runs nothing either.
    others |= {"deepseek_v2", "dots1", "gemma3n_text"}
    # The usual config has no indexer, without which the reference does not run either.
    others |= {"qwen4_exp", "qwen4_exp_text"}
    # Models that make vectors of images, whose golden cases are of their own kind.
    others |= {"clip", "colpali", "siglip", "siglip2"}
    # Its tokens of a prompt see each other, which its golden cases with images hold.
    others |= {"paligemma"}
    # Groups of experts, which are not computed.
    others |= {"mistral4", "mistral_large4", "mistral_large4_text"}
    assert own - {model_type for model_type, _ in taken()} <= others


def own_types() -> set[tuple[str, str]]:
    """Those of each family, of which test_families.py has golden cases."""
    return {(name, family.path) for family in families() for name in family.model_types}


def test_checkpoints_of_other_types_that_a_family_takes_are_answered_as_by_the_reference(
    tmp_path: Path,
) -> None:
    assert wrong_of([each for each in taken() if each not in own_types()], tmp_path) == {}


@pytest.mark.nightly
@pytest.mark.timeout(1600)
def test_checkpoints_of_a_familys_own_types_are_answered_as_by_the_reference(
    tmp_path: Path,
) -> None:
    assert wrong_of([each for each in taken() if each in own_types()], tmp_path) == {}


def wrong_of(pairs: list[tuple[str, str]], folder: Path) -> dict[tuple[str, str], str]:
    """What is wrong with each model type through each family that is not right."""
    found: dict[tuple[str, str], str] = {}
    for model_type, family in pairs:
        checkpoint = folder / model_type
        if not checkpoint.exists():
            checkpoint.mkdir()
            write_checkpoint(model_type, checkpoint)
        try:
            _check(model_type, family, checkpoint)
        except Exception as wrong:
            found[model_type, family] = repr(wrong)
    return found


def _check(model_type: str, family: str, checkpoint: Path) -> None:
    try:
        module, recipe = _load(family, checkpoint)
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
