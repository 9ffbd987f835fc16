"""Settings of positions that are there twice count as in transformers 5, or are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model_server.checkpoints.huggingface.folder_files import read_config
from model_server.checkpoints.text_part import text_config
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.models.layer_shapes import TINY, decoder_of

LLAMA = TINY | {"model_type": "llama"}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "factor": 2.0}
NEOX = {
    "model_type": "gpt_neox",
    **{key: TINY[key] for key in TINY if key != "num_key_value_heads"},
    "hidden_size": 64,
}
PART = PLAIN | {"partial_rotary_factor": 0.5}


def read(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(config))
    return read_config(folder)


ALIKE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"rope_parameters": PLAIN, "rope_scaling": YARN | {"rope_theta": 500.0}},
        {"rope_parameters": YARN | {"rope_theta": 500.0}},
    ),
    (
        {"rope_theta": 500.0, "rope_parameters": PLAIN, "rope_scaling": YARN},
        {"rope_theta": 500.0, "rope_scaling": YARN},
    ),
    (
        {"rope_parameters": LINEAR | {"rope_theta": 9.0}, "rope_scaling": LINEAR | PLAIN | LINEAR},
        {"rope_parameters": LINEAR | {"rope_theta": 500.0}},
    ),
    ({"rope_theta": 1e4, "rope_parameters": PLAIN}, {"rope_theta": 500.0}),
    (
        {"rope_theta": 1e4, "rope_scaling": LINEAR | {"rope_theta": 500.0}},
        {"rope_theta": 500.0, "rope_scaling": LINEAR},
    ),
    (
        {"model_type": "glm", "partial_rotary_factor": 1.0, "rope_parameters": PART},
        {"model_type": "glm", "partial_rotary_factor": 0.5, "rope_theta": 500.0},
    ),
    (
        NEOX | {"rotary_pct": 1.0, "rotary_emb_base": 1e4, "rope_parameters": PART},
        NEOX | {"rotary_pct": 0.5, "rotary_emb_base": 500.0},
    ),
]


@each_case("config, same", ALIKE)
def test_of_settings_in_two_places_those_of_transformers_count(
    tmp_path: Path, config: dict[str, Any], same: dict[str, Any]
) -> None:
    base = {} if same.get("model_type") == "gpt_neox" else LLAMA
    found, wanted = (decoder_of(read(tmp_path, base | given)) for given in (config, same))
    assert found.ropes == wanted.ropes
    assert found.ropes != decoder_of(base | same | {"rope_theta": 77.0, "rope_parameters": None})


def test_both_spellings_of_a_config_say_the_same_once_it_is_read(tmp_path: Path) -> None:
    inner = {"rope_parameters": PLAIN, "rope_scaling": YARN | {"rope_theta": 6.0}}
    config = read(tmp_path, LLAMA | ALIKE[0][0] | {"rope_theta": 7.0, "text_config": inner})
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 500.0
    assert config["rope_scaling"] == YARN
    assert config["text_config"]["rope_parameters"] == YARN | {"rope_theta": 6.0}
    assert read(tmp_path, config) == config


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rope_parameters": PLAIN, "rope_scaling": YARN}, "rope_theta it does not have"),
    (
        {"rope_parameters": PART, "rope_scaling": PLAIN},
        "partial_rotary_factor it does not have",
    ),
    (
        {"rope_parameters": {"full_attention": PLAIN}, "rope_scaling": YARN},
        "full_attention it does not have",
    ),
]


@each_case("config, words", REFUSED)
def test_settings_that_transformers_would_drop_are_refused(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=f"rope_scaling beside rope_parameters.*{words}"):
        read(tmp_path, LLAMA | config)


def test_settings_outside_of_the_text_models_config_are_refused_unless_they_repeat_it() -> None:
    """Model cards of Qwen2.5-VL add YaRN outside, where older files have the text model's keys."""
    own = {"mrope_section": [1, 2, 3], "rope_type": "default", "rope_theta": 500.0}
    older = {"mrope_section": [1, 2, 3], "type": "mrope"}
    config: dict[str, Any] = {"model_type": "qwen2_5_vl", "text_config": {"rope_parameters": own}}
    assert text_config(config | {"rope_scaling": older})["rope_parameters"] == own
    with pytest.raises(CheckpointError, match="rope_scaling outside of text_config"):
        text_config(config | {"rope_scaling": YARN | older | YARN})


def test_settings_of_all_layers_are_refused_where_each_kind_has_its_own() -> None:
    with pytest.raises(CheckpointError, match="factor among its rope settings.*full_attention"):
        decoder_of(TINY | {"model_type": "gemma3_text", "head_dim": 8, "rope_parameters": LINEAR})
