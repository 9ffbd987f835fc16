"""A family's Orbax folder gives the model of the folder from which it was made."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.text_part import text_config
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import own_device
from model_server.models.weights.weight import leaf_shapes
from model_server.plan.checkpoint.convert import convert
from tests.model_server.checkpoints.gguf_case import small_tokenizer
from tests.model_server.models.family_cases import (
    F32,
    checkpoint_of,
    config_of,
    first_of_each_family,
    weights_of,
)
from tests.model_server.tiny import logits_of

# By day one of plain layers, and one of whose experts every second column is read.
BY_DAY = ("llama_llama3_biases", "gpt_oss")
EACH = [
    pytest.param(name, marks=[] if name in BY_DAY else pytest.mark.nightly)
    for name in first_of_each_family()
    if "model_type" in config_of(name)
]
PROMPT = np.arange(3, 9)


@pytest.mark.parametrize("name", EACH)
def test_an_orbax_folder_gives_the_same_model(name: str, tmp_path: Path) -> None:
    """The same weights bit for bit, and the same program, as numbers that config.json gives are
    constants of it."""
    folder, orbax = tmp_path / "folder", tmp_path / "orbax"
    shutil.copytree(checkpoint_of(name), folder)
    vocab = text_config(config_of(name)).get("vocab_size", 97)
    (folder / "tokenizer.json").write_text(small_tokenizer(vocab), encoding="utf-8")
    convert(str(folder), str(orbax), to="orbax")
    found, wanted = weights_of(orbax), weights_of(folder)
    assert found.keys() == wanted.keys()
    for path, numbers in wanted.items():
        np.testing.assert_array_equal(found[path], numbers, err_msg=path)
    assert program_of(orbax) == program_of(folder)


def program_of(path: Path) -> tuple[str, list[list[float]]]:
    """Return what is computed of a prompt, and its constants."""
    with closing(open_checkpoint(str(path))) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, F32)
        encoder = isinstance(recipe, EmbedRecipe)
        module = recipe.blueprint() if encoder else recipe.blueprint(checkpoint=checkpoint)

    def run(leaves: Any) -> Any:
        model = module.assemble(leaves)
        if encoder:
            return model(PROMPT[None], np.array([len(PROMPT)]))
        return logits_of(model, recipe, PROMPT)

    made = jax.make_jaxpr(run)(leaf_shapes(module, own_device()))
    return str(made.jaxpr), [np.asarray(each).ravel().tolist() for each in made.consts]
