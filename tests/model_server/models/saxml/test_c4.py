"""C4SpmdGpt3AdamOrgHP: learned positions bound its context."""

from __future__ import annotations

import pytest

from model_server.models.registry import make_recipe
from sax.errors import InvalidRequest

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
