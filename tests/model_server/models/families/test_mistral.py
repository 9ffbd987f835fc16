"""What is particular to Mistral; its logits are in test_families.py."""

from __future__ import annotations

import pytest

from tests.model_server.models.layer_shapes import TINY, windows_of

MISTRAL = TINY | {"model_type": "mistral"}


@pytest.mark.parametrize(
    ("config", "window"),
    [(MISTRAL, 4096), (MISTRAL | {"sliding_window": None}, None), ({"sliding_window": 8}, 8)],
)
def test_a_config_without_a_window_means_the_first_models_and_a_null_none(
    config: dict[str, object], window: int | None
) -> None:
    assert windows_of(MISTRAL | config) == [window] * 4


def test_layers_that_the_config_lists_as_full_do_not_slide() -> None:
    kinds = ["full_attention", "sliding_attention"] * 2
    assert windows_of(MISTRAL | {"layer_types": kinds}) == [None, 4096, None, 4096]
