"""Every complaint about a config.json names its key; null and absent are told apart, and layers
slide as it lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.models.config_keys import ConfigKeys, sliding_layers, windows_of
from model_server.models.known_keys import KnownKeys
from sax.errors import CheckpointError

DEFAULTS = {"window": 8, "cap": 50.0}
KNOWN = KnownKeys("gemma2", ("window", "cap", "bias", "kind"), {})


def keys(**config: Any) -> ConfigKeys:
    return ConfigKeys(config, KNOWN, DEFAULTS)


def test_defaults_hold_for_absent_keys_and_not_for_null_ones() -> None:
    assert (keys().whole_or_none("window"), keys().number_or_none("cap")) == (8, 50.0)
    assert keys(window=None).whole_or_none("window") is None
    assert keys(cap=None).number_or_none("cap") is None
    assert keys(window=3).whole("window") == 3
    with pytest.raises(CheckpointError, match="no window, which the gemma2 family needs"):
        keys(window=None).whole("window")


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda: keys(window=0).whole_or_none("window"), "window = 0; .* from 1 to"),
        (lambda: keys(window=2.5).whole("window"), "window = 2.5; the gemma2 family"),
        (lambda: keys(cap="50").number_or_none("cap"), "cap = '50'; .* a number"),
        (lambda: keys(cap=True).number("cap"), "cap = True; .* a number"),
        (lambda: keys(bias=1).flag("bias"), "bias = 1; .* true or false"),
        (lambda: keys(kind="b").only("kind", "a"), "kind = 'b'; the gemma2 family supports 'a'"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_key(read: Callable[[], Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        read()


MISTRAL = KnownKeys("mistral", ("num_hidden_layers", "layer_types"), {})
FULL, SLIDING = "full_attention", "sliding_attention"


def layers_of(layers: int, layer_types: Any) -> ConfigKeys:
    return ConfigKeys({"num_hidden_layers": layers, "layer_types": layer_types}, MISTRAL)


@given(slides=st.lists(st.booleans(), min_size=1, max_size=9))
def test_the_list_of_the_config_counts_whatever_the_family_has(slides: list[bool]) -> None:
    given_types = [SLIDING if slide else FULL for slide in slides]
    listed = layers_of(len(slides), given_types)
    assert sliding_layers(listed, lambda index: not slides[index]) == slides
    assert sliding_layers(layers_of(len(slides), None), slides.__getitem__) == slides
    assert windows_of(listed, 7, bool) == [7 if slide else None for slide in slides]


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(CheckpointError, match="num_hidden_layers = 3 but layer_types"):
        sliding_layers(layers_of(3, [FULL, SLIDING]), bool)


def test_a_kind_of_layer_that_is_not_computed_is_named() -> None:
    with pytest.raises(CheckpointError, match="'chunked_attention' in layer_types; the mistral"):
        sliding_layers(layers_of(2, [FULL, "chunked_attention"]), bool)
