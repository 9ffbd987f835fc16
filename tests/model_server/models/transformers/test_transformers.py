"""What a model that transformers' code serves is refused for before anything is traced."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from model_server.models.registry import families, make_recipe
from model_server.models.transformers.transformers import COMPARED, is_installed
from sax.distribution import how_to_install
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.models.transformers.cases import case_names

CONFIG = {"model_type": "stablelm", "max_position_embeddings": 64}


@pytest.mark.skipif(is_installed(), reason="torch is installed, so nothing is refused for it")
@pytest.mark.parametrize("path", ["auto", "transformers"])
def test_without_torch_the_extra_is_named(path: str) -> None:
    with pytest.raises(CheckpointError) as told:
        make_recipe(path, CONFIG, {})
    assert "stablelm" in told.value.text
    assert how_to_install("torch") in told.value.text


@pytest.mark.parametrize(
    "overrides",
    [{"ICI_MESH_SHAPE": "[1, 1, 2]"}, {"NUM_STAGES": "2"}, {"TASKS": '["generate", "embed"]'}],
)
def test_what_takes_several_devices_or_no_tokens_is_refused(overrides: Mapping[str, str]) -> None:
    (key,) = overrides
    with pytest.raises(InvalidRequest, match=f"{key} is .* on one device"):
        make_recipe("transformers", CONFIG, overrides)


def test_auto_serves_the_twenty_types_that_have_a_case_and_no_family_and_no_other() -> None:
    assert len(COMPARED) == 20
    assert set(case_names()) == set(COMPARED)
    assert not {name for family in families() for name in family.model_types} & set(COMPARED)
    with pytest.raises(CheckpointError, match="not supported"):
        make_recipe("auto", CONFIG | {"model_type": "xglm"}, {})
