"""The LLaMA classes, with the defaults that Saxml gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_server.loading.random_weights import random_weights
from model_server.models.layers.rope import rope_of
from model_server.models.registry import make_recipe
from model_server.models.saxml.saxml_llama import model_classes
from tests.model_server.tiny import WholeSequences

PACKAGE = "saxml.server.pax.lm.params.lm_cloud."
SHRUNK = {
    "NUM_LAYERS": "2",
    "MODEL_DIMS": "32",
    "HIDDEN_DIMS": "64",
    "NUM_HEADS": "4",
    "DIMS_PER_HEAD": "8",
    "VOCAB_SIZE": "97",
    "DTYPE": '"float32"',
}


def served(name: str) -> dict[str, Any]:
    recipe = make_recipe(PACKAGE + name, None, {})
    return {
        "context": recipe.max_context,
        "mesh": recipe.mesh_shape,
        "slots": recipe.slots,
        "kind": recipe.quantize.kind if recipe.quantize else recipe.dtype,
        "top_k": recipe.defaults.top_k,
        "temperature": recipe.defaults.temperature,
        "answer": recipe.defaults.max_tokens,
    }


def test_there_are_34_of_them() -> None:
    """46 classes of lm_cloud less the 12 of LmCloudSpmd."""
    assert len({entry.path for entry in model_classes()}) == 34


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("LLaMA7BFP16", (160, (1, 1, 1), None, "bfloat16", 40, 0.5, 32)),
        ("LLaMA7BFP16TPUv4", (160, (1, 1, 4), None, "bfloat16", 40, 0.5, 32)),
        ("LLaMA7BTPUv5e16", (2048, (1, 1, 16), 32, "bfloat16", 1, 0.5, 1024)),
        ("LLaMA7BContinuousBatchingTPUv5e8", (2048, (1, 1, 8), 16, "bfloat16", 1, 0.5, 1024)),
        ("LLaMA65B", (5120, (1, 1, 4), None, "int8", 40, 0.5, 128)),
        ("LLaMA70BInt8TPUv5e8", (2048, (1, 1, 8), 72, "int8", 1, 0.0, 1024)),
        ("LLaMA70BInt8H100x8", (2048, (1, 1, 8), 128, "int8", 1, 0.5, 1024)),
        ("LLaMA70BFP16TPUv5e64", (5120, (1, 1, 64), None, "bfloat16", 40, 0.5, 128)),
        ("LLaMA31_405BLinearOnlyInt8x32", (5120, (1, 1, 32), None, "int8", 40, 0.5, 128)),
    ],
)
def test_classes_are_served_as_saxml_declares_them(name: str, wanted: tuple[Any, ...]) -> None:
    assert tuple(served(name).values()) == wanted


@pytest.mark.parametrize(
    ("name", "rope"),
    [
        ("LLaMA7B", {"rope_theta": 10000.0}),
        ("LLaMA3_8BFP16x1", {"rope_theta": 500000.0}),
        (
            "LLaMA31_405BFP16x64",
            {
                "rope_theta": 500000.0,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
            },
        ),
    ],
)
def test_each_generation_has_its_rotation(name: str, rope: dict[str, Any]) -> None:
    module = make_recipe(PACKAGE + name, None, SHRUNK | {"NUM_KV_HEADS": "null"}).blueprint()
    model = module.assemble([leaf for weight in module.declarations for leaf in weight.leaves])
    assert set(model.ropes) == {rope_of(rope, 8)}


def test_random_weights_make_a_model_that_computes() -> None:
    recipe = make_recipe(f"{PACKAGE}LLaMA70BFP16TPUv5e", None, SHRUNK | {"NUM_KV_HEADS": "2"})
    module = recipe.blueprint()
    model = module.assemble(random_weights(module.declarations, 0, lambda _: None))
    logits = WholeSequences(model, recipe, 5).logits([3, 1, 4, 1, 5])
    assert logits.shape == (5, 97)
    assert np.isfinite(logits).all()
    assert np.abs(logits[1] - logits[3]).max() > 1e-6
