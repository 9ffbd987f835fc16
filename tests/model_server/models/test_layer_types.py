"""Which layers slide: as the config lists them, else as the family has it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.models.config_keys import ConfigKeys, sliding_layers, windows_of
from model_server.models.families import mistral
from sax.errors import CheckpointError

FULL, SLIDING = "full_attention", "sliding_attention"


def keys(layers: int, layer_types: Any) -> ConfigKeys:
    return ConfigKeys({"num_hidden_layers": layers, "layer_types": layer_types}, mistral.KEYS)


@given(slides=st.lists(st.booleans(), min_size=1, max_size=9))
def test_the_list_of_the_config_counts_whatever_the_family_has(slides: list[bool]) -> None:
    given_types = [SLIDING if slide else FULL for slide in slides]
    listed = keys(len(slides), given_types)
    assert sliding_layers(listed, lambda index: not slides[index]) == slides
    assert sliding_layers(keys(len(slides), None), slides.__getitem__) == slides
    assert windows_of(listed, 7, bool) == [7 if slide else None for slide in slides]


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(CheckpointError, match="num_hidden_layers = 3 but layer_types"):
        sliding_layers(keys(3, [FULL, SLIDING]), bool)


def test_a_kind_of_layer_that_is_not_computed_is_named() -> None:
    with pytest.raises(CheckpointError, match="'chunked_attention' in layer_types; the mistral"):
        sliding_layers(keys(2, [FULL, "chunked_attention"]), bool)
