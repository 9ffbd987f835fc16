"""The Gemma classes, with the defaults that Saxml gives them."""

from __future__ import annotations

import pytest

from model_server.models.registry import make_recipe
from model_server.models.saxml.saxml_gemma import model_classes
from sax.errors import CheckpointError

PACKAGE = "saxml.server.pax.lm.params.gemma."
# config.json of google/gemma-2b, as far as it matters here.
GEMMA_2B = {
    "model_type": "gemma",
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "max_position_embeddings": 8192,
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "vocab_size": 256000,
}


def test_there_are_16_of_them() -> None:
    assert len({entry.path for entry in model_classes()}) == 16


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("GemmaBase", (5120, (1, 1, 1), None, "float32", False)),
        ("Gemma2BFP16", (2048, None, 256, "bfloat16", False)),
        ("Gemma2BFP16With8Replicas", (2048, (8, 1, 1), 256, "bfloat16", False)),
        ("Gemma7BFP16Exp", (2048, None, 42, "bfloat16", False)),
        ("Gemma7BInt8With2Replicas", (2048, (2, 1, 4), 48, "bfloat16", True)),
        ("Gemma7BInt8Test", (2048, None, 48, "bfloat16", True)),
    ],
)
def test_classes_are_served_as_saxml_declares_them(name: str, wanted: tuple[object, ...]) -> None:
    recipe = make_recipe(PACKAGE + name, None, {})
    small = recipe.quantize is not None
    assert (recipe.max_context, recipe.mesh_shape, recipe.slots, recipe.dtype, small) == wanted


def test_the_published_checkpoint_fits_though_saxml_pads_its_vocabulary() -> None:
    recipe = make_recipe(f"{PACKAGE}Gemma2BFP16", GEMMA_2B, {})
    assert (recipe.vocab, recipe.max_context) == (256000, 2048)
    no_head_dim = {key: value for key, value in GEMMA_2B.items() if key != "head_dim"}
    make_recipe(f"{PACKAGE}Gemma2BFP16", no_head_dim, {})


def test_the_smaller_checkpoint_does_not_fit_the_larger_class() -> None:
    with pytest.raises(CheckpointError, match="NUM_LAYERS is 18 but Gemma7BFP16 has 28"):
        make_recipe(f"{PACKAGE}Gemma7BFP16", GEMMA_2B, {})
