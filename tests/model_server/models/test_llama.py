"""Llama against the logits of the reference implementation (see golden/make_llama_tiny.py)."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from model_server.checkpoints.checkpoint import open_checkpoint
from model_server.models.llama import LlamaConfig
from model_server.models.registry import make_recipe
from model_server.models.weight import blueprint
from model_server.weights import read_weights
from sax.errors import CheckpointError
from tests.model_server.tiny import logits_of

GOLDEN = Path(__file__).parents[2] / "golden"
F32 = {"DTYPE": '"float32"'}
TIED = json.loads((GOLDEN / "llama_tiny_tied" / "config.json").read_text())


@pytest.mark.parametrize("name", ["llama_tiny_tied", "llama_tiny_untied", "llama_tiny_llama3"])
def test_logits_equal_the_reference_implementations(name: str) -> None:
    golden = np.load(GOLDEN / name / "golden.npz")
    with closing(open_checkpoint(str(GOLDEN / name))) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, F32)
        module = blueprint(recipe.build)
        model = module.assemble(read_weights(module.declarations, checkpoint, lambda _: None))
    logits = logits_of(model, recipe, golden["prompt"])
    scale = np.abs(golden["logits"]).max()
    np.testing.assert_allclose(np.asarray(logits), golden["logits"], atol=1e-4 * scale, rtol=1e-4)


def test_a_config_without_a_needed_size_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="intermediate_size"):
        LlamaConfig.from_hf({"num_attention_heads": 4, "hidden_size": 8, "num_hidden_layers": 1})


def test_a_rope_scaling_that_is_not_computed_is_refused() -> None:
    config = TIED | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    with pytest.raises(CheckpointError, match="yarn"):
        LlamaConfig.from_hf(config)


def test_an_activation_that_is_not_computed_is_refused() -> None:
    with pytest.raises(CheckpointError, match="gelu"):
        LlamaConfig.from_hf(TIED | {"hidden_act": "gelu"})
