"""What a Mixtral config.json means beyond the golden cases (see test_families.py)."""

from __future__ import annotations

import jax.numpy as jnp

from model_server.models.layers.routing import SoftmaxChoice
from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import config_of
from tests.model_server.models.layer_shapes import decoder_of, windows_of

CONFIG = config_of("mixtral")


def without(*keys: str) -> dict[str, object]:
    return {key: value for key, value in CONFIG.items() if key not in keys}


def test_two_of_eight_experts_unless_the_config_says_otherwise() -> None:
    ffw = decoder_of(without("num_local_experts", "num_experts_per_tok")).layers[0].ffw
    assert ffw.experts.gate.shape == (8, 64, 48)
    assert ffw.router.choice == SoftmaxChoice(2, normalised=True)


def test_the_rope_turns_as_slowly_as_the_published_ones_unless_the_config_says_otherwise() -> None:
    published = decoder_of(CONFIG).ropes[0]
    assert decoder_of(without("rope_theta")).ropes[0] == published
    newer = without("rope_theta") | {"rope_parameters": {"rope_theta": 1e4}}
    assert decoder_of(newer).ropes[0] != published


def test_no_window_unless_the_config_says_otherwise() -> None:
    assert windows_of(without("sliding_window")) == [None, None]
    assert windows_of(CONFIG | {"sliding_window": 5}) == [5, 5]


def test_routers_stay_exact_whatever_the_model_is_held_in() -> None:
    """Two experts that are almost equal must not change places by rounding."""
    for overrides in ({}, {"QUANTIZE": '"int8"'}):
        declared = make_recipe("auto", CONFIG, overrides).blueprint().declarations
        (router, *_) = (d for d in declared if "router" in d.path)
        assert (router.dtype, router.packing) == (jnp.float32, None)
