"""Golden families stored as Pax give the logits of transformers and of Saxml's recipes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from tests.model_server.checkpoints.pax_trees import of_gptj, of_llama, of_praxis
from tests.model_server.checkpoints.pax_writer import Variables, write_arrays
from tests.model_server.checkpoints.tiny_folder import write_json
from tests.model_server.models.family_cases import (
    F32,
    checkpoint_of,
    config_of,
    golden_of,
    overrides_of,
)
from tests.model_server.tiny import logits_of

CASES = (
    "llama_all_heads",
    "llama_tied",
    "llama_untied_mqa",
    "gptj",
    "gptj_wide",
    "gemma",
    "gemma_mqa",
    "lm_cloud",
    "lm_cloud_odd_heads",
    "c4_spmd_gpt3",
)
BY_DAY = ("llama_untied_mqa", "gptj", "lm_cloud_odd_heads")


def variables_of(name: str) -> Variables:
    tensors, config = load_file(checkpoint_of(name) / "model.safetensors"), config_of(name)
    match config.get("model_type"):
        case "llama":
            return of_llama(tensors, config)
        case "gemma":
            return of_llama(tensors, config, paired=False)
        case "gptj":
            return of_gptj(tensors, config)
        case _:
            return of_praxis(tensors, int(overrides_of(name)["NUM_HEADS"]))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in BY_DAY else pytest.mark.nightly) for name in CASES],
)
def test_logits_equal_the_reference_implementations(tmp_path: Path, name: str) -> None:
    step, config = write_arrays(tmp_path, variables_of(name)), config_of(name)
    path = config.get("model_path", "auto")
    if path == "auto":
        write_json(step / "config.json", config)
    layout = layout_of((1, 1, 1)).placed()
    with closing(open_checkpoint(str(step))) as checkpoint:
        overrides = {"ICI_MESH_SHAPE": "[1,1,1]"} | F32 | overrides_of(name)
        recipe = make_recipe(path, checkpoint.config, overrides)
        assert isinstance(recipe, Recipe)
        module = recipe.blueprint(layout, checkpoint)
        leaves = read_weights(module.declarations, checkpoint, lambda _: None, layout)
    model, golden = module.assemble(leaves), dict(golden_of(name))

    def run(model: Any) -> jax.Array:
        return logits_of(model, recipe, golden["prompt"])

    wanted = golden["logits"]
    found = np.asarray(jax.jit(run)(model))
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)
