"""The model of a plan, by each of its names."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from model_server.models.registry import make_recipe
from model_server.plan.model import known_models, known_names, open_model, open_with_draft
from sax.errors import CheckpointError, InvalidRequest, ModelPathNotFound
from tests.each_case import Failures, each_case

# Billions of parameters, where the name says them in another way or not at all.
_SAID = {
    "mistralai/Mixtral-8x7B": 46.7,
    "mistralai/Mixtral-8x22B": 140.6,
    "deepseek-ai/DeepSeek-V3": 671.0,
    "microsoft/phi-4": 14.7,
    "google/gemma-2b": 2.5,
    "google/gemma-7b": 8.5,
    "google/gemma-2-2b": 2.6,
    "google/gemma-2-9b": 9.2,
    "google/gemma-2-27b": 27.2,
    "meta-llama/Llama-2-7b": 6.7,
    "meta-llama/Llama-2-70b": 69.0,
    "meta-llama/Llama-3.2-1B": 1.24,
    "meta-llama/Llama-3.2-3B": 3.2,
    "Qwen/Qwen2.5-7B": 7.6,
    "google/gemma-3-12b": 11.8,
    "CohereLabs/c4ai-command-a-03-2025": 111.0,
    "CohereLabs/c4ai-command-r-plus": 104.0,
    "CohereLabs/c4ai-command-r-v01": 35.0,
    "CohereLabs/c4ai-command-r7b-12-2024": 8.0,
    "bigcode/starcoder2-15b": 16.0,
    "microsoft/phi-2": 2.8,
    "mistralai/Ministral-3-8B": 8.5,
    "tencent/Hunyuan-7B": 7.5,
    "deepseek-ai/DeepSeek-V3.2": 671.9,
    "ibm-granite/granite-4.0-h-small": 32.2,
    "MiniMaxAI/MiniMax-Text-01": 456.0,
    "moonshotai/Kimi-K2": 1026.0,
    "deepseek-ai/DeepSeek-V2": 236.0,
    "deepseek-ai/DeepSeek-V2-Lite": 15.7,
    "facebook/cwm": 32.6,
    "google/gemma-3n-E2B": 4.4,  # of the text
    "google/gemma-3n-E4B": 6.8,
    "meta-llama/Llama-4-Maverick-17B-128E": 400.7,
    "meta-llama/Llama-4-Scout-17B-16E": 107.8,
    "microsoft/Phi-3.5-MoE": 41.9,
    "rednote-hilab/dots.llm1": 142.8,
    "tencent/Hunyuan-A13B": 80.4,
    "tiiuae/Falcon-H1-7B": 7.6,
    "Qwen/Qwen2.5-VL-7B": 7.6,
    "zai-org/GLM-4-32B-0414": 32.6,
    "zai-org/GLM-4-9B-0414": 9.4,
    "zai-org/GLM-4.5": 352.8,
    "zai-org/GLM-4.5-Air": 106.9,
    "zai-org/GLM-4.7-Flash": 29.9,
    "zai-org/GLM-5": 743.9,
}


def _billions(name: str) -> float:
    """Billions of parameters in the name: 70 for meta-llama/Llama-3-70B."""
    words = name.lower().replace("-", " ").split()
    return next(float(word[:-1]) for word in reversed(words) if word[:-1].isdigit())


@pytest.mark.nightly
def test_a_well_known_model_has_the_parameters_that_its_name_says() -> None:
    failures = Failures()
    for name in known_names():
        with failures.of(name):
            with open_model(name) as model:
                declared = model.recipe({}).blueprint().declarations
            found = sum(math.prod(each.shape) for each in declared) / 1e9
            assert found == pytest.approx(_SAID.get(name) or _billions(name), rel=0.06)
    assert not failures, str(failures)


@each_case("text", ["meta-llama/Meta-Llama-3-70B-Instruct", "Llama-3-70B", "llama-3-70b"])
def test_a_well_known_model_goes_by_several_names(text: str) -> None:
    with open_model(text) as model:
        assert model.title == "meta-llama/Llama-3-70B"


def test_no_two_well_known_models_share_a_name() -> None:
    assert len(known_models()) == len(known_names()) > 30


@each_case(
    "text",
    [
        "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd175B32Test",
        "pax.lm.params.lm_cloud.LmCloudSpmd175B32Test",
        "lm_cloud.LmCloudSpmd175B32Test",
        "LmCloudSpmd175B32Test",
    ],
)
def test_a_registered_class_is_found_by_the_end_of_its_path(text: str) -> None:
    with open_model(text) as model:
        assert model.path == "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd175B32Test"
        assert model.config is None


_SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
}


def test_a_config_alone_is_a_model_as_a_file_and_as_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(_SMALL))
    for place in (file, tmp_path):
        with open_model(str(place)) as model:
            assert model.path == "auto"
            assert make_recipe(model.path, model.config, {}).vocab == 256


def test_the_text_part_of_a_model_that_sees_images_is_planned(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gemma3", "text_config": {"hidden_size": 64}}))
    with open_model(str(file)) as model:
        assert model.config == {"model_type": "gemma3_text", "hidden_size": 64}


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"), open_model(str(file)):
        pass


def test_an_unknown_model_is_refused_with_the_nearest_names() -> None:
    with (
        pytest.raises(InvalidRequest, match="nearest: .*Llama-4-Scout.*llama"),
        open_model("Llama-4"),
    ):
        pass


def test_a_wrong_model_path_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelPathNotFound), open_model(str(tmp_path), "lama"):
        pass


@each_case(
    "name, overrides, message",
    [
        ("llama", {}, "takes its sizes from a checkpoint"),
        ("Llama-3-8B", {"QUANTIZE": '"int9"'}, "QUANTIZE"),
        ("Llama-3-8B", {"NUM_STAGES": "2"}, "a plan covers one mesh"),
        ("Llama-3-8B", {"NUM_LAYERS": "2"}, "unknown override"),
        ("Llama-3-8B", {"TASKS": '["embed"]'}, "TASKS without generate"),
    ],
)
def test_what_no_plan_can_be_made_of_is_refused(
    name: str, overrides: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message), open_model(name) as model:
        model.recipe(overrides)


def test_stored_numbers_without_the_checkpoint_are_refused_in_words() -> None:
    with open_model("Llama-3-8B") as model:
        recipe = model.recipe({"QUANTIZE": '"stored"'})
        with pytest.raises(InvalidRequest, match="keeps a checkpoint's own quantisation"):
            recipe.blueprint()


def test_an_embedding_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    config = {"model_type": "bert", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 99}
    more = {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
    file.write_text(json.dumps({**config, **more}))
    with pytest.raises(InvalidRequest, match="embedding model"), open_model(str(file)) as model:
        model.recipe({})


DRAFTED = {"SPECULATION": '"draft"', "DRAFT_MODEL": '"Llama-3-8B"', "KV_CACHE_DTYPE": '"int8"'}


def test_a_draft_model_is_opened_beside_its_model() -> None:
    with open_with_draft("Llama-3-70B", DRAFTED) as model:
        recipe = model.recipe(DRAFTED)
        other = model.recipe({**DRAFTED, "KV_CACHE_DTYPE": '"bfloat16"'})
    assert recipe.draft is not None
    assert other.draft is not None
    assert len(recipe.draft.recipe.windows) == 32 < len(recipe.windows)
    assert recipe.draft.recipe.kv_cache_dtype == recipe.kv_cache_dtype == "int8"
    assert other.draft.recipe.kv_cache_dtype == "bfloat16"


def test_without_a_draft_model_none_is_opened() -> None:
    with open_with_draft("Llama-3-70B", {}) as model:
        assert model.draft is None
        assert model.recipe({}).draft is None


@pytest.mark.parametrize(
    ("draft", "message"), [("Llama-4", "DRAFT_MODEL: .*nearest"), ("llama", "takes its sizes")]
)
def test_a_draft_model_that_cannot_be_opened_is_named(draft: str, message: str) -> None:
    overrides = {"SPECULATION": '"draft"', "DRAFT_MODEL": f'"{draft}"'}
    with (
        pytest.raises(InvalidRequest, match=message) as caught,
        open_with_draft("Llama-3-8B", overrides),
    ):
        pass
    assert caught.value.param == "overrides.DRAFT_MODEL"
