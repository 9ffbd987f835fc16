"""What a Qwen3-MoE config.json means beyond the golden cases (see test_families.py)."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.config_keys import ConfigKeys
from model_server.models.families import qwen3_moe
from model_server.models.families.qwen3_moe import sparse_layers
from model_server.models.layers.routing import SoftmaxChoice
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import config_of
from tests.model_server.models.layer_shapes import decoder_of, windows_of

CONFIG = config_of("qwen3_moe")


def sparse(**changes: Any) -> list[bool]:
    return sparse_layers(ConfigKeys({"decoder_sparse_step": 1, **changes}, qwen3_moe.KEYS))


def test_every_layer_has_experts_unless_the_config_says_otherwise() -> None:
    assert sparse(num_hidden_layers=3, mlp_only_layers=None) == [True] * 3


def test_the_last_layer_of_every_step_has_experts_less_those_listed() -> None:
    every_second = sparse(num_hidden_layers=5, decoder_sparse_step=2)
    assert every_second == [False, True, False, True, False]
    assert sparse(num_hidden_layers=4, mlp_only_layers=[0, 3]) == [False, True, True, False]


def test_a_list_of_dense_layers_that_is_none_is_refused() -> None:
    with pytest.raises(CheckpointError, match="mlp_only_layers"):
        sparse(num_hidden_layers=4, mlp_only_layers="0")


def test_the_number_of_experts_is_read_under_both_of_its_names() -> None:
    renamed = {k: v for k, v in CONFIG.items() if k != "num_experts"}
    layer = decoder_of(renamed | {"num_local_experts": 6}).layers[0]
    assert layer.ffw.experts.gate.shape == (6, 24, 48)
    assert layer.ffw.router.choice == SoftmaxChoice(2, normalised=True)


def test_all_layers_slide_where_a_window_is_used() -> None:
    assert windows_of(CONFIG | {"sliding_window": 9}) == [None, None]
    assert windows_of(CONFIG | {"sliding_window": 9, "use_sliding_window": True}) == [9, 9]
