"""Checkpoints with a vision encoder: the report of `sax inspect`, and what converting leaves."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from model_server.checkpoints.media_part import media_part_of
from model_server.checkpoints.opening import open_checkpoint
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.plan.checkpoint.convert import convert
from model_server.plan.checkpoint.inspect import inspect
from tests.end_to_end.hearing_model import CONTROL as SOUND
from tests.model_server.loading.media.image_folder import folder_of
from tests.tools.golden.media.gemma3 import START


def test_inspect_says_how_a_checkpoint_sees(tmp_path: Path) -> None:
    report = inspect(folder_of(tmp_path / "model"))
    assert report.problems == []
    assert report.images is not None
    assert report.images.startswith("seen, up to 4 tokens each, by an encoder of 1")
    assert "images         seen, up to 4 tokens" in report.as_text()


def test_inspect_says_what_would_keep_it_from_seeing(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder_of(folder, {START: "<start_of_image>"})
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    spare, tokens = inspect(str(folder)).problems
    assert "in the vision encoder, the checkpoint has tensors that the model does not use" in spare
    assert "makes 0 tokens 264" in tokens


def test_an_audio_encoder_without_tensors_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder_of(folder, SOUND, "qwen2_audio")
    config = json.loads((folder / "config.json").read_text())
    config["audio_config"]["encoder_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    (problem,) = inspect(str(folder)).problems
    assert problem.startswith("in the audio encoder, the checkpoint lacks ")


@pytest.mark.parametrize("to", ["huggingface", "orbax", "gguf"])
def test_a_converted_checkpoint_is_the_text_model_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, to: str
) -> None:
    source, place = folder_of(tmp_path / "model"), tmp_path / f"text.{to}"
    convert(source, str(place), to=to)
    assert "only the text part is written; 39 tensors of the vision encoder" in caplog.text
    with closing(open_checkpoint(str(place))) as checkpoint:
        assert media_part_of(checkpoint) is None
        recipe = make_recipe("auto", checkpoint.config, {})
        assert isinstance(recipe, Recipe)
        assert recipe.media == ()
