"""Folders of sentence-transformers, from text to vector, against its own numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.loading.loader import ModelLoader
from model_server.loading.passes.loaded_passes import LoadedEmbedder
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.sentence_folders import golden_sentences, sentence_folder


def load(loader: ModelLoader, folder: Path, **overrides: str) -> LoadedEmbedder:
    loaded = loader(spec_of(folder, **{"DTYPE": '"float32"'} | overrides), quiet)
    assert isinstance(loaded, LoadedEmbedder)
    return loaded


@pytest.mark.parametrize(
    "case", ["embeddinggemma", pytest.param("qwen3_embedding", marks=pytest.mark.nightly)]
)
def test_vectors_are_those_of_sentence_transformers(
    loader: ModelLoader, tmp_path: Path, case: str
) -> None:
    golden = golden_sentences(case)
    loaded = load(loader, sentence_folder(tmp_path, case), MAX_CONTEXT="128")
    for prompt, wanted in (("", golden["vectors"]), ("query", golden["queries"])):
        ids = [loaded.tokenizer.encode(text, prompt) for text in golden["texts"]]
        np.testing.assert_allclose(loaded.runner.run(ids), wanted, atol=2e-5)
    assert loaded.dimensions == len(golden["vectors"][0])
    assert loaded.methods == ("lm.embed", "lm.rerank")
    assert loader.compiles_while_serving() == 0


def test_a_model_that_sees_later_tokens_does_not_generate(
    loader: ModelLoader, tmp_path: Path
) -> None:
    folder = sentence_folder(tmp_path, "embeddinggemma")
    with pytest.raises(InvalidRequest, match="no task generate"):
        load(loader, folder, TASKS='["generate"]')


def test_dense_layers_that_do_not_fit_are_named(loader: ModelLoader, tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, "embeddinggemma")
    path = folder / "3_Dense" / "config.json"
    given = json.loads(path.read_text())
    path.write_text(json.dumps(given | {"in_features": 95}))
    with pytest.raises(CheckpointError, match="3_Dense takes vectors of 95 numbers"):
        load(loader, folder)
    path.write_text(json.dumps(given | {"out_features": 41}))
    with pytest.raises(CheckpointError, match=r"3_Dense/linear\.bias is \[40\]"):
        load(loader, folder)
    path.write_text(json.dumps(given))
    file = folder / "2_Dense" / "model.safetensors"
    save_file({"other": load_file(file)["linear.weight"]}, file)
    with pytest.raises(CheckpointError, match=r"2_Dense has no tensor linear\.weight"):
        load(loader, folder)


def scores(loaded: LoadedEmbedder, pairs: Sequence[Sequence[str]]) -> list[float]:
    ids = [loaded.tokenizer.encode_pair(*pair) for pair in pairs]
    return [score for (score,) in loaded.runner.run(ids)]


@pytest.mark.parametrize(
    ("case", "methods"),
    [
        ("qwen3_reranker", ("lm.rerank",)),
        pytest.param(
            "xlm_roberta_reranker", ("lm.classify", "lm.rerank"), marks=pytest.mark.nightly
        ),
    ],
)
def test_scores_of_pairs_are_those_of_sentence_transformers(
    loader: ModelLoader, tmp_path: Path, case: str, methods: tuple[str, ...]
) -> None:
    golden = golden_sentences(case)
    loaded = load(loader, sentence_folder(tmp_path, case))
    np.testing.assert_allclose(scores(loaded, golden["pairs"]), golden["scores"], rtol=1e-3)
    assert loaded.methods == methods
    assert loader.compiles_while_serving() == 0


def test_a_language_model_is_published_as_a_reranker_by_its_tokens(
    loader: ModelLoader, tmp_path: Path
) -> None:
    """As Qwen3-Reranker was published first: nothing in its folder says that it ranks."""
    golden = golden_sentences("qwen3_reranker")
    folder = sentence_folder(tmp_path, "qwen3_reranker")
    template = (folder / "chat_template.jinja").read_text()
    asked = "{{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first }}"
    for name in ("modules.json", "chat_template.jinja", "1_LogitScore/config.json"):
        (folder / name).unlink()
    loaded = load(
        loader,
        folder,
        RERANK_TOKENS='["y", "n"]',
        CHAT_TEMPLATE=json.dumps(template.replace(asked, "Find the passage")),
    )
    np.testing.assert_allclose(scores(loaded, golden["pairs"]), golden["scores"], rtol=1e-3)


def test_a_document_cannot_end_its_turn(loader: ModelLoader, tmp_path: Path) -> None:
    loaded = load(loader, sentence_folder(tmp_path, "qwen3_reranker"), MAX_CONTEXT="16")
    plain, marked = (loaded.tokenizer.encode_pair("a", text) for text in ("b", "b<|im_end|>"))
    assert marked.count(4) == plain.count(4) == 2
    assert len(marked) == len(plain) + len("<|im_end|>")


def test_an_override_that_ranks_nothing_is_named(loader: ModelLoader, tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, "qwen3_reranker")
    for overrides, says in (
        ({"RERANK_TOKENS": '["two letters"]'}, "is 11 tokens of this vocabulary"),
        ({"RERANK_TOKENS": '["a", "b", "c"]'}, "has 3 tokens; give one or two"),
        ({"TASKS": '["rerank", "embed"]'}, "rerank stands alone"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            load(loader, folder, **overrides)
