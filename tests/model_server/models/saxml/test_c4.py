"""C4SpmdGpt3AdamOrgHP: learned positions bound its context."""

from __future__ import annotations

import pytest

from model_server.models.registry import find, make_recipe
from sax.errors import InvalidRequest

PATH = "saxml.server.pax.lm.params.c4.C4SpmdGpt3AdamOrgHP"


def test_it_is_served_as_saxml_declares_it() -> None:
    recipe = make_recipe(PATH, None, {})
    assert (recipe.slots, recipe.samples, recipe.mesh_shape) == (4, 1, (1, 1, 64))
    assert recipe.max_context == 2048 + 128


def test_the_context_ends_with_the_table_of_positions() -> None:
    assert make_recipe(PATH, None, {"TRAINABLE_PE_MAX_SEQ_LEN": "40"}).max_context == 40
    with pytest.raises(InvalidRequest, match="more than the 40 tokens"):
        make_recipe(PATH, None, {"TRAINABLE_PE_MAX_SEQ_LEN": "40", "MAX_CONTEXT": "41"})


@pytest.mark.parametrize("rows", ["0", "null"])
def test_a_table_without_rows_is_refused(rows: str) -> None:
    with pytest.raises(InvalidRequest, match="TRAINABLE_PE_MAX_SEQ_LEN"):
        make_recipe(PATH, None, {"TRAINABLE_PE_MAX_SEQ_LEN": rows})


def test_its_beam_search_is_refused_in_words_and_its_absence_is_not() -> None:
    with pytest.raises(InvalidRequest, match="beam search is not supported"):
        make_recipe(PATH, None, {"USE_BEAM_SEARCH": "true"})
    with pytest.raises(InvalidRequest, match="beam search is not supported"):
        make_recipe(PATH, None, {"BEAM_SIZE": "4"})
    make_recipe(PATH, None, {"USE_BEAM_SEARCH": "false"})
    assert find(PATH).overridable["USE_BEAM_SEARCH"] is False
