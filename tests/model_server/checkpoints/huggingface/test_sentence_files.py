"""An embedding model still makes the same vectors once its folder is converted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from model_server.checkpoints.huggingface.sentence_transformers import (
    SentenceSettings,
    read_sentence_settings,
)
from model_server.checkpoints.opening import open_checkpoint
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.model_server.checkpoints.bucket_server import BucketServer
from tests.model_server.checkpoints.tiny_folder import write_json


def _settings(folder: Path, pooling: str, path: str = "1_Pooling") -> Path:
    kinds: list[tuple[str, str]] = [("Transformer", ""), ("Pooling", path)]
    modules = [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in kinds]
    write_json(folder / "modules.json", modules)
    (folder / path).mkdir(exist_ok=True)
    flags: dict[str, Any] = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}
    write_json(folder / path / "config.json", flags | {f"pooling_mode_{pooling}": True})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 48})
    return folder


@pytest.mark.parametrize("to", ["orbax", "huggingface"])
def test_a_folder_keeps_them(folder: Path, tmp_path: Path, to: str) -> None:
    convert(str(_settings(folder, "cls_token")), str(tmp_path / "out"), to=to)
    kept = read_sentence_settings(tmp_path / "out")
    assert kept == SentenceSettings(pooling="cls", normalise=False, max_length=48)
    assert kept == read_sentence_settings(folder)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_they_are_fetched_from_a_bucket(
    bucket_server: BucketServer, folder: Path, scheme: str
) -> None:
    place = bucket_server.root / "bucket" / "embedder"
    convert(str(_settings(folder, "cls_token")), str(place), to="orbax")
    with closing(open_checkpoint(f"{scheme}://bucket/embedder")) as checkpoint:
        kept = read_sentence_settings(checkpoint.folder)
    assert kept == SentenceSettings(pooling="cls", normalise=False, max_length=48)


def test_a_gguf_file_that_would_lose_them_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"settings that a GGUF file cannot hold .*'cls'"):
        convert(str(_settings(folder, "cls_token")), str(tmp_path / "out.gguf"))
    assert not (tmp_path / "out.gguf").exists()


def test_nothing_outside_the_folder_is_copied(folder: Path, tmp_path: Path) -> None:
    _settings(folder, "mean_tokens", "../outside")
    with pytest.raises(CheckpointError, match=r"outside the checkpoint: '\.\./outside'"):
        convert(str(folder), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
