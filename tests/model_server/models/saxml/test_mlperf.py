"""The GPT-J and GPT-3 classes, with the defaults that Saxml gives them."""

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


PATH = "saxml.server.pax.lm.params.c4.C4SpmdGpt3AdamOrgHP"


def test_it_is_served_as_saxml_declares_it() -> None:
    recipe = make_recipe(PATH, None, {})
    # 4 requests, each with 4 beams.
    assert (recipe.slots, recipe.samples, recipe.mesh_shape) == (16, 1, (1, 1, 64))
    assert recipe.max_context == 2048 + 128


def test_the_context_ends_with_the_table_of_positions() -> None:
    assert make_recipe(PATH, None, {"TRAINABLE_PE_MAX_SEQ_LEN": "40"}).max_context == 40
    with pytest.raises(InvalidRequest, match="more than the 40 tokens"):
        make_recipe(PATH, None, {"TRAINABLE_PE_MAX_SEQ_LEN": "40", "MAX_CONTEXT": "41"})


@pytest.mark.parametrize("rows", ["0", "null"])
def test_a_table_without_rows_is_refused(rows: str) -> None:
    with pytest.raises(InvalidRequest, match="TRAINABLE_PE_MAX_SEQ_LEN"):
        make_recipe(PATH, None, {"TRAINABLE_PE_MAX_SEQ_LEN": rows})


def test_its_beam_search_can_be_changed_and_switched_off() -> None:
    found = make_recipe(PATH, None, {}).defaults
    assert (found.beam_size, found.length_penalty, found.min_tokens) == (4, 0.8, 0)
    changed = {"BEAM_SIZE": "2", "LENGTH_NORM_ALPHA": "0.6", "MIN_DECODE_STEPS": "3"}
    recipe = make_recipe(PATH, None, changed)
    assert recipe.slots == 8
    assert recipe.defaults.beam_size == 2
    assert recipe.defaults.length_penalty == 0.6
    assert recipe.defaults.min_tokens == 3
    samples = make_recipe(PATH, None, {"USE_BEAM_SEARCH": "false", "TEMPERATURE": "0.7"})
    assert (samples.defaults.beam_size, samples.defaults.temperature, samples.slots) == (0, 0.7, 4)
