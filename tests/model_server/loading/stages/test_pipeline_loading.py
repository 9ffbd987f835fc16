"""One plan for all stages, and of a checkpoint only a stage's own tensors."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.opening import open_checkpoint
from model_server.config import ModelServerConfig
from model_server.loading.deployment import Deployment
from model_server.loading.lm_loading import own_tensors
from model_server.loading.stages.pipeline_loading import plan_stage
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from sax.errors import CheckpointError, InvalidRequest, MemoryPlanError
from tests.model_server.models.family_cases import F32, checkpoint_of
from tests.model_server.multihost.staged import LM, TINY

CONFIG = ModelServerConfig(slots=4, page_size=8, max_context=64, kv_cache_bytes=2**19)
LAYOUT = layout_of().placed()
# Three layers: two in the first stage, one in the second.
RECIPE: Any = make_recipe(LM, None, TINY | {"NUM_STAGES": "2"})


def plan(index: int, config: ModelServerConfig = CONFIG, **rest: Any) -> Deployment:
    return plan_stage(RECIPE, None, index, LAYOUT, config, rest.pop("holders", {}), **rest)


def test_the_stage_with_the_least_room_decides_for_all() -> None:
    """A page of two layers takes up twice as much as one of a single layer."""
    plans = [plan(0), plan(1)]
    page = 2 * 8 * 4 * 8 * 4  # keys and values, G, K, Q, bytes: of one layer
    tight = replace(CONFIG, kv_cache_bytes=20 * 2 * page)
    assert [plan(index, tight).limits.pages for index in (0, 1)] == [19, 19]
    assert [plan(index, tight).memory.kv for index in (0, 1)] == [40 * page, 20 * page]
    assert plans[0].limits == plans[1].limits
    assert plans[0].limits.pages == 32  # every slot's whole context: there is room for more


def test_a_host_keeps_what_the_primary_decided_if_it_can() -> None:
    decided = msgspec.structs.replace(plan(0).limits, pages=11)
    assert plan(1, decided=decided).limits == decided
    assert plan(1, decided=decided).memory.pages == 11
    assert plan(1, decided=decided).memory.total < plan(1).memory.total


def test_a_host_without_the_room_says_which_stage_it_has() -> None:
    text = "stage 2 of 2 .layers 2 to 2. has memory for 32 KV pages, but the primary planned 99"
    with pytest.raises(MemoryPlanError, match=text):
        plan(1, decided=msgspec.structs.replace(plan(0).limits, pages=99))


def test_a_stage_that_does_not_fit_is_named() -> None:
    with pytest.raises(MemoryPlanError, match="stage 1 of 2 .layers 0 to 1.: the model does not"):
        plan(1, replace(CONFIG, memory_limit_bytes=2**24))


def test_more_stages_than_layers_are_refused() -> None:
    four: Any = make_recipe(LM, None, TINY | {"NUM_STAGES": "4"})
    with pytest.raises(InvalidRequest, match="NUM_STAGES is 4 but this model has 3 layers"):
        plan_stage(four, None, 0, LAYOUT, CONFIG, {})


def test_a_stage_sees_its_own_tensors_only() -> None:
    seen = [set(names) for names in _seen(str(checkpoint_of("llama_tied")))]
    assert "model.embed_tokens.weight" in seen[0] & seen[1]  # tied: the last stage's head
    assert "model.norm.weight" in seen[1] - seen[0]
    layers = [{name.split(".")[2] for name in names if ".layers." in name} for names in seen]
    assert layers == [{"0", "1"}, {"2"}]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.input_layernorm.weight"])
def test_every_host_refuses_a_checkpoint_that_lacks_a_tensor_of_any_stage(
    tmp_path: Path, index: int, name: str
) -> None:
    folder = _changed(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"the checkpoint lacks {name}"):
        _seen(folder, [index])


def test_a_tensor_of_no_stage_is_refused_as_ever(tmp_path: Path) -> None:
    def add(tensors: dict[str, Any]) -> None:
        tensors["model.layers.3.other"] = tensors["model.norm.weight"]

    with pytest.raises(CheckpointError, match="does not use: model.layers.3.other"):
        _seen(_changed(tmp_path, add), [1])


def test_a_checkpoint_with_bare_names_is_cut_too(tmp_path: Path) -> None:
    """As the first GPT-2 files, whose last layers alone would not be told from it."""

    def strip(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    seen = _seen(_changed(tmp_path, strip))
    assert "model.layers.0.input_layernorm.weight" in set(seen[0]) - set(seen[1])
    assert "model.layers.2.input_layernorm.weight" in set(seen[1]) - set(seen[0])


def _seen(folder: str, stages: Any = (0, 1)) -> list[list[str]]:
    with closing(open_checkpoint(folder)) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, F32 | {"NUM_STAGES": "2"})
        assert isinstance(recipe, Recipe)
        parts = recipe.cut()
        return [_own(parts[index], checkpoint).names() for index in stages]


def _own(part: Recipe, checkpoint: Checkpoint) -> Checkpoint:
    return own_tensors(part, part.blueprint(LAYOUT, checkpoint), LAYOUT, checkpoint)


def _changed(folder: Path, change: Any) -> str:
    """llama_tied with other tensors."""
    source = checkpoint_of("llama_tied")
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    return str(folder)
