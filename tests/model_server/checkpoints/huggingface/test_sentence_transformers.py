"""Settings of sentence-transformers folders, also once converted, and what is not computed."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from model_server.checkpoints.huggingface.sentence_transformers import (
    SentenceSettings,
    TokenScore,
    read_sentence_settings,
)
from model_server.checkpoints.opening import open_checkpoint
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.bucket_server import BucketServer
from tests.model_server.checkpoints.tiny_folder import write_json

KINDS = ("Transformer", "Pooling", "Normalize")
MEAN = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}


def folder_with(
    folder: Path,
    *,
    kinds: tuple[str, ...] = KINDS,
    pooling: dict[str, Any] = MEAN,
    text: dict[str, Any] | None = None,
    prompts: dict[str, Any] | None = None,
) -> Path:
    paths = ("", "1_Pooling", "2_Last", "3_Extra")
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if text is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(text))
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def test_the_folder_of_minilm_is_mean_normalised_and_256_tokens_long(tmp_path: Path) -> None:
    flags = {f"pooling_mode_{name}": False for name in ("cls_token", "max_tokens")}
    path = folder_with(
        tmp_path, pooling=MEAN | flags, text={"max_seq_length": 256, "do_lower_case": False}
    )
    assert read_sentence_settings(path) == SentenceSettings(pooling="mean", max_length=256)


def test_without_modules_a_model_is_normalised_and_pooled_as_its_family_says(
    tmp_path: Path,
) -> None:
    expected = SentenceSettings(pooling=None, normalise=True)
    assert read_sentence_settings(tmp_path) == expected
    assert read_sentence_settings(None) == expected


@each_case("given", [{"pooling_mode_lasttoken": True}, {"pooling_mode": "lasttoken"}])
def test_pooling_may_be_by_the_last_token(tmp_path: Path, given: dict[str, Any]) -> None:
    assert read_sentence_settings(folder_with(tmp_path, pooling=given)).pooling == "last"


@each_case("given", [{"pooling_mode_cls_token": True}, {"pooling_mode": "cls"}])
def test_pooling_may_be_by_the_first_token(tmp_path: Path, given: dict[str, Any]) -> None:
    assert read_sentence_settings(folder_with(tmp_path, pooling=given)).pooling == "cls"


def test_a_model_without_the_last_module_is_not_normalised(tmp_path: Path) -> None:
    assert not read_sentence_settings(folder_with(tmp_path, kinds=KINDS[:2])).normalise


def test_a_reranker_that_is_a_classifier_may_say_how_it_makes_scores(tmp_path: Path) -> None:
    """As sentence-transformers writes it since 5.4."""
    path = folder_with(tmp_path, kinds=("Transformer",), prompts={"activation_fn": "torch.nn.X"})
    assert read_sentence_settings(path) == SentenceSettings(activation="torch.nn.X")


@each_case("false_id", [None, 7])
def test_a_language_model_that_ranks_names_its_tokens(tmp_path: Path, false_id: int | None) -> None:
    config = {"true_token_id": 5, "false_token_id": false_id, "module_input_name": "causal_logits"}
    path = folder_with(tmp_path, kinds=("Transformer", "LogitScore"), pooling=config)
    assert read_sentence_settings(path).score == TokenScore(5, false_id)


@each_case("given", [{}, {"true_token_id": "yes"}, {"false_token_id": 5}])
def test_a_score_without_tokens_is_named(tmp_path: Path, given: dict[str, Any]) -> None:
    path = folder_with(tmp_path, kinds=("Transformer", "LogitScore"), pooling=given)
    with pytest.raises(CheckpointError, match="names no tokens"):
        read_sentence_settings(path)


def test_lower_case_and_a_default_prompt_are_honoured(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: ", "other": ""}, "default_prompt_name": "query"}
    path = folder_with(tmp_path, text={"do_lower_case": True}, prompts=prompts)
    settings = read_sentence_settings(path)
    assert (settings.lower_case, settings.prefix) == (True, "query: ")


@each_case(
    "changes, says",
    [
        ({"kinds": (*KINDS[:2], "LSTM")}, "lists Transformer, Pooling, LSTM"),
        ({"kinds": (*KINDS, "Dense")}, "lists Transformer, Pooling, Normalize, Dense"),
        ({"kinds": ("Transformer", "WordWeights")}, "lists Transformer, WordWeights"),
        ({"kinds": ("WordEmbeddings", "Pooling")}, "lists WordEmbeddings, Pooling"),
        ({"pooling": {"pooling_mode_mean_sqrt_len_tokens": True}}, "pooling by mean_sqrt_len"),
        (
            {"pooling": MEAN | {"pooling_mode_cls_token": True}},
            "by cls_token, mean_tokens; supported is one",
        ),
        ({"pooling": {"pooling_mode": "weightedmean"}}, "pooling by weightedmean"),
        ({"prompts": {"prompts": {"query": 5}}}, "a prompt 'query' that is not a text"),
        (
            {
                "prompts": {"prompts": {"query": "Q: "}},
                "pooling": MEAN | {"include_prompt": False},
            },
            "include_prompt is false",
        ),
        ({"pooling": {}}, "pooling by nothing"),
        ({"prompts": {"default_prompt_name": "query"}}, "no prompt 'query'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        read_sentence_settings(folder_with(tmp_path, **changes))
    assert str(tmp_path) in caught.value.text


@each_case("modules", ["[1]", "{}", '[{"type": "a.Transformer"}]', "nonsense"])
def test_a_broken_list_of_modules_is_named(tmp_path: Path, modules: str) -> None:
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        read_sentence_settings(tmp_path)


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


@pytest.mark.parametrize("scheme", [pytest.param("gs", marks=pytest.mark.nightly), "s3"])
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
