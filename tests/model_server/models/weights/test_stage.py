"""Stages share out a model's layers, and together hold all that the model does, once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from flax import nnx

from model_server.checkpoints.text_part import text_config
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.stage import stages_of
from model_server.models.weights.weight import Blueprint
from sax.errors import InvalidRequest
from tests.model_server.models.family_cases import (
    F32,
    config_of,
    first_of_each_family,
    is_encoder,
    overrides_of,
)
from tests.model_server.models.layer_shapes import TINY

LM = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"


def test_layers_are_shared_out_in_order_the_last_stages_get_fewer() -> None:
    for layers, sizes in ((96, [24] * 4), (7, [3, 2, 2]), (3, [1, 1, 1]), (5, [5])):
        stages, rest = stages_of(layers, len(sizes)), [False] * (len(sizes) - 1)
        assert [stage.end - stage.first for stage in stages] == sizes
        held = [layer for stage in stages for layer in range(layers)[stage.layers]]
        assert held == list(range(layers))
        assert [stage.is_first for stage in stages] == [True, *rest]
        assert [stage.is_last for stage in stages] == [*rest, True]


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="NUM_STAGES is 5 but this model has 4 layers"):
        stages_of(4, 5)


# Of each kind: dense with a tied head, experts, states, pages lent to other layers, Saxml's.
KINDS = ("llama_tied", "deepseek_v3", "mamba2", "gemma3n", "lm_cloud")


def test_the_stages_of_a_family_of_each_kind_hold_every_tensor_once() -> None:
    """But for a tied embedding, which the first and the last hold both."""
    assert {name: told for name in KINDS if (told := _held_otherwise(name))} == {}


@pytest.mark.nightly
def test_the_stages_of_every_family_hold_every_tensor_once() -> None:
    names = [name for name in first_of_each_family() if not is_encoder(name)]
    assert {name: told for name in names if (told := _held_otherwise(name))} == {}


def _held_otherwise(name: str) -> list[str]:
    """Tensors of a case that two stages hold other than once, or twice if both need them: a table
    that is the head, too, and the speeds of Mistral Large 4's positions."""
    whole, parts = _blueprints(name, stages=2)
    held = Counter(name for part in parts for name in set(_tensors(part)))
    tied = not any(weight.path.startswith("head.") for weight in whole.declarations)
    paths = ["alpha", "embedding.table"] if tied else ["alpha"]
    both = [n for w in whole.declarations if w.path in paths for n in _of(w)]
    wanted = Counter({name: 1 + (name in both) for name in _tensors(whole)})
    return [name for name in held | wanted if held[name] != wanted[name]]


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


def test_stages_are_counted() -> None:
    for value in ("0", "-1", "null", "true", '"2"'):
        with pytest.raises(InvalidRequest, match="NUM_STAGES"):
            make_recipe(LM, None, {"NUM_STAGES": value})


def _blueprints(name: str, stages: int) -> tuple[Blueprint, list[Blueprint]]:
    config, path = config_of(name), config_of(name).get("model_path")
    values = F32 | overrides_of(name)
    recipe = make_recipe(path or "auto", None if path else text_config(config), values)
    assert isinstance(recipe, Recipe)
    parts = replace(recipe, stages=stages).cut()
    return recipe.blueprint(), [part.blueprint() for part in parts]


def _tensors(module: Blueprint) -> list[str]:
    return [name for weight in module.declarations for name in _of(weight)]


def _of(weight: Any) -> list[str]:
    return list(dict.fromkeys(weight.source.names))
