"""Dense modules of sentence-transformers folders: their settings and their files."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from model_server.checkpoints.huggingface.dense_modules import DenseModule, read_dense_module
from model_server.checkpoints.huggingface.sentence_transformers import (
    copy_sentence_settings,
    read_sentence_settings,
)
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.sentence_folders import sentence_folder

# As sentence-transformers before 5 writes it.
EARLY = {
    "in_features": 8,
    "out_features": 4,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
}


def read(folder: Path, config: dict[str, Any]) -> DenseModule:
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    return read_dense_module(folder, PurePosixPath("2_Dense"))


def test_a_module_has_sizes_a_bias_and_an_activation(tmp_path: Path) -> None:
    wanted = DenseModule(folder="2_Dense", inputs=8, outputs=4, biased=True, activation="tanh")
    assert read(tmp_path, EARLY) == wanted


@each_case(
    "changes, says",
    [
        ({"activation_function": "my.Own"}, "activation_function = 'my.Own'"),
        ({"use_residual": True}, "use_residual = True"),
        ({"module_input_name": "token_embeddings"}, "module_input_name = 'token_embeddings'"),
        ({"mystery": 1}, "mystery = 1"),
        ({"in_features": 0}, "no sizes in_features and out_features"),
        ({"out_features": None}, "no sizes in_features and out_features"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(CheckpointError, match=says):
        read(tmp_path, EARLY | changes)


def test_the_modules_and_their_weights_go_along_with_the_settings(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    copy_sentence_settings(sentence_folder(source, "embeddinggemma"), target)
    settings = read_sentence_settings(target)
    assert settings == read_sentence_settings(source)
    assert [each.folder for each in settings.dense] == ["2_Dense", "3_Dense"]
    for each in settings.dense:
        assert (target / each.folder / "model.safetensors").is_file()
