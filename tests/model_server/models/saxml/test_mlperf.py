"""The GPT-J classes, with the defaults that Saxml gives them."""

from __future__ import annotations

import pytest

from model_server.models.registry import make_recipe
from model_server.models.saxml.mlperf import model_classes
from sax.errors import CheckpointError, InvalidRequest

PACKAGE = "saxml.server.pax.lm.params.gptj."
BEAMS = 4  # slots of each request
# config.json of EleutherAI/gpt-j-6b, as far as it matters here.
GPT_J_6B = {
    "model_type": "gptj",
    "n_embd": 4096,
    "n_head": 16,
    "n_inner": None,
    "n_layer": 28,
    "n_positions": 2048,
    "rotary_dim": 64,
    "tie_word_embeddings": False,
    "vocab_size": 50400,
}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("GPTJ", (2047, (1, 1, 1), None, "float32")),
        ("GPTJ4BF16BS32", (2047, (1, 1, 4), 32 * BEAMS, "bfloat16")),
        ("GPTJ4TokenizedBF16BS32", (2047, (1, 1, 4), 32 * BEAMS, "bfloat16")),
    ],
)
def test_classes_are_served_as_saxml_declares_them(name: str, wanted: tuple[object, ...]) -> None:
    recipe = make_recipe(PACKAGE + name, None, {})
    assert (recipe.max_context, recipe.mesh_shape, recipe.slots, recipe.dtype) == wanted
    assert len([each for each in model_classes() if each.path.startswith(PACKAGE)]) == 3


def test_answers_are_searched_for_as_saxml_declares_it() -> None:
    found = make_recipe(f"{PACKAGE}GPTJ", None, {}).defaults
    assert (found.beam_size, found.tokens_per_beam, found.length_penalty) == (BEAMS, 4, 0.5)


def test_the_published_checkpoint_fits() -> None:
    assert make_recipe(f"{PACKAGE}GPTJ", GPT_J_6B, {}).vocab == 50400


def test_another_rotation_does_not() -> None:
    with pytest.raises(CheckpointError, match="ROTARY_DIM is 32 but GPTJ has 64"):
        make_recipe(f"{PACKAGE}GPTJ", GPT_J_6B | {"rotary_dim": 32}, {})


def test_the_context_ends_where_its_positions_end() -> None:
    with pytest.raises(InvalidRequest, match="more than the 2048 tokens"):
        make_recipe(f"{PACKAGE}GPTJ", None, {"MAX_DECODE_STEPS": "256"})
