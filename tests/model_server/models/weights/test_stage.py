"""Stages share out a model's layers, and together hold all that the model does, once."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from flax import nnx

from model_server.checkpoints.opening import open_checkpoint
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.stage import stages_of
from model_server.models.weights.weight import Blueprint
from sax.errors import InvalidRequest
from tests.model_server.models.family_cases import (
    F32,
    FAMILIES,
    checkpoint_of,
    config_of,
    first_of_each_family,
    is_encoder,
)
from tests.model_server.models.layer_shapes import TINY

DECODERS = [name for name in first_of_each_family() if not is_encoder(name)]
LM = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"


@pytest.mark.parametrize(
    ("layers", "count", "sizes"),
    [(96, 4, [24] * 4), (7, 3, [3, 2, 2]), (3, 3, [1, 1, 1]), (5, 1, [5])],
)
def test_layers_are_shared_out_in_order_the_last_stages_get_fewer(
    layers: int, count: int, sizes: list[int]
) -> None:
    stages = stages_of(layers, count)
    assert [stage.end - stage.first for stage in stages] == sizes
    held = [layer for stage in stages for layer in range(layers)[stage.layers]]
    assert held == list(range(layers))
    assert [stage.is_first for stage in stages] == [True] + [False] * (count - 1)
    assert [stage.is_last for stage in stages] == [False] * (count - 1) + [True]


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="NUM_STAGES is 5 but this model has 4 layers"):
        stages_of(4, 5)


@pytest.mark.parametrize("name", DECODERS)
def test_the_stages_of_every_family_hold_every_tensor_once(name: str) -> None:
    """But for a tied embedding, which the first and the last hold both."""
    whole, parts = _blueprints(name, stages=2)
    held = Counter(name for part in parts for name in set(_tensors(part)))
    assert set(held) == set(_tensors(whole))
    twice = [name for name, count in held.items() if count > 1]
    tied = not any(weight.path.startswith("head.") for weight in whole.declarations)
    embedding = [n for w in whole.declarations if w.path == "embedding.table" for n in _of(w)]
    assert twice == (embedding if tied else [])


def test_a_stage_caches_its_own_layers_only() -> None:
    recipe: Any = make_recipe(LM, None, {"NUM_LAYERS": "7", "NUM_STAGES": "3"})
    assert [part.cache(1).layers for part in recipe.cut()] == [3, 2, 2]
    assert recipe.cache(1).layers == 7


def test_a_model_that_is_no_stack_of_layers_is_refused() -> None:
    class Nothing(nnx.Module):
        pass

    recipe: Any = make_recipe("auto", TINY | {"model_type": "llama"}, {"NUM_STAGES": "2"})
    with pytest.raises(InvalidRequest, match=r"NUM_STAGES is 2, .* \(Nothing\) is not a stack"):
        replace(recipe.cut()[0], build=lambda form: Nothing()).blueprint()


@pytest.mark.parametrize("value", ["0", "-1", "null", "true", '"2"'])
def test_stages_are_counted(value: str) -> None:
    with pytest.raises(InvalidRequest, match="NUM_STAGES"):
        make_recipe(LM, None, {"NUM_STAGES": value})


def _blueprints(name: str, stages: int) -> tuple[Blueprint, list[Blueprint]]:
    path = config_of(name).get("model_path")
    with closing(open_checkpoint(str(checkpoint_of(name)))) as checkpoint:
        recipe = make_recipe(
            path or "auto", None if path else checkpoint.config, F32 | _shrunk(name)
        )
    assert isinstance(recipe, Recipe)
    parts = replace(recipe, stages=stages).cut()
    return recipe.blueprint(), [part.blueprint() for part in parts]


def _shrunk(name: str) -> dict[str, str]:
    path = FAMILIES / name / "overrides.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _tensors(module: Blueprint) -> list[str]:
    return [name for weight in module.declarations for name in _of(weight)]


def _of(weight: Any) -> list[str]:
    return list(dict.fromkeys(weight.source.names))
