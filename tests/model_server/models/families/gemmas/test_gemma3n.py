"""Gemma 3n's own keys, and the pages that its last layers share; its logits are elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.gemmas.gemma3n import KEYS, sparsities_of, widths_of
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from sax.errors import InvalidRequest
from tests.model_server.models.family_cases import config_of

GEMMA = config_of("gemma3n")


def recipe(**changes: Any) -> Recipe:
    made = make_recipe("auto", GEMMA | changes, {})
    assert isinstance(made, Recipe)
    return made


def test_layers_that_borrow_keep_nothing() -> None:
    made = recipe()
    assert made.cache(1).lenders == (*[None] * 6, 4, 5)
    assert [made.cache(1).state_of(index) for index in (5, 6)] == [None, ()]
    assert not made.recurrent
    assert made.sliding_window == 8


def test_tensors_of_borrowed_keys_are_not_read() -> None:
    assert {name.split(".")[2] for name in recipe().unused} == {"6", "7"}


def test_a_row_between_layers_holds_all_versions_and_all_inputs() -> None:
    assert recipe().row == 4 * 48 + 8 * 10


def test_stages_are_cut_only_where_no_keys_are_lent_across() -> None:
    from_two = make_recipe("auto", GEMMA, {"NUM_STAGES": "2"})
    assert isinstance(from_two, Recipe)
    assert from_two.cut()[1].cache(1).layers == 4
    from_four = make_recipe("auto", GEMMA, {"NUM_STAGES": "4"})
    assert isinstance(from_four, Recipe)
    with pytest.raises(InvalidRequest, match=r"stage 4 of 4 .* values of layer 4, which is in"):
        from_four.cut()


def test_one_number_stands_for_all_layers() -> None:
    keys = ConfigKeys({"num_hidden_layers": 12, "intermediate_size": 8}, KEYS)
    assert widths_of(keys) == [8] * 12
    assert sparsities_of(keys) == [0.95] * 10 + [0.0] * 2
