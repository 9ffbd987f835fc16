"""The real loader on a tiny BERT (the real MiniLM: see test_minilm.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.huggingface.sentence_transformers import SentenceSettings
from model_server.config import ModelServerConfig
from model_server.loading.loader import ModelLoader
from model_server.loading.passes.embed_loading import context_of, encoding_as
from model_server.loading.passes.loaded_passes import LoadedEmbedder
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.registry import make_recipe
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError, InvalidRequest, MemoryPlanError
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.models.family_cases import golden_of
from tests.model_server.models.refusals import refused_otherwise
from tests.model_server.tiny_bert import tiny_bert

SMALL = {"MAX_CONTEXT": "32", "BATCH_SIZE": "4"}


def load(loader: ModelLoader, folder: Path | str, **overrides: str) -> LoadedEmbedder:
    loaded = loader(spec_of(folder, **SMALL | overrides), quiet)
    assert isinstance(loaded, LoadedEmbedder)
    return loaded


def test_a_vector_is_the_reference_implementations_in_any_batch(
    loader: ModelLoader, tmp_path: Path
) -> None:
    golden = golden_of("bert")
    loaded = load(loader, tiny_bert(tmp_path))
    ids = golden["prompt"].tolist()
    for batch in ([ids], [[5, 6], ids, [7]], [ids] * 7):
        vectors = loaded.runner.run(batch)
        np.testing.assert_allclose(vectors[batch.index(ids)], golden["pooled"], atol=1e-5)
    assert loaded.dimensions == len(golden["pooled"])
    assert loader.compiles_while_serving() == 0


def test_a_text_is_read_with_its_start_and_its_end(loader: ModelLoader, tmp_path: Path) -> None:
    loaded = load(loader, tiny_bert(tmp_path))
    assert loaded.tokenizer.encode("ab c") == [2, 5, 32, 7, 3]
    # a control token written in a text stays text
    assert loaded.tokenizer.encode("[SEP]")[1:-1].count(3) == 0


def test_pooling_and_normalising_follow_the_folder(loader: ModelLoader, tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path)
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    golden = golden_of("bert")
    vector = load(loader, folder).runner.run([golden["prompt"].tolist()])[0]
    np.testing.assert_allclose(vector, golden["hidden"][0], rtol=1e-4, atol=1e-4)


def test_pooling_follows_a_gguf_files_own_word(loader: ModelLoader, tmp_path: Path) -> None:
    golden = golden_of("bert")
    loaded = load(loader, tiny_bert(tmp_path, pooling="cls"), BATCH_SIZE="1")
    first = golden["hidden"][0]
    vector = loaded.runner.run([golden["prompt"].tolist()])[0]
    np.testing.assert_allclose(vector, first / np.linalg.norm(first), atol=1e-5)


def test_memory_counts_while_loaded_and_is_given_back(loader: ModelLoader, tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path)
    small = {"BATCH_SIZE": "1"}
    needed = load(loader, folder, **small).memory
    limit = ModelServerConfig(memory_limit_bytes=needed + needed // 2)
    tight = ModelLoader(limit, loader.watch)
    first = load(tight, folder, **small)
    with pytest.raises(MemoryPlanError, match="in use by other models"):
        load(tight, folder, **small)
    first.runner.close()
    assert load(tight, folder, **small).memory == needed


def test_a_checkpoint_that_does_not_fit_says_what_is_wrong(
    loader: ModelLoader, tmp_path: Path
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_hidden_layers": 4}, r"lacks encoder\.layer\.3"),
        ({"intermediate_size": 65}, "the configuration says"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"num_attention_heads": 5}, "does not divide into 5 heads"),
        ({"hidden_act": "mystery"}, "activation 'mystery'"),
        ({"vocab_size": 20}, "rows of embedding"),
    ]
    wrong = refused_otherwise(
        lambda config: load(loader, tiny_bert(tmp_path, **config)), cases, CheckpointError
    )
    assert wrong == {}


def recipe(**overrides: str) -> EmbedRecipe:
    config = json.loads((Path(__file__).parents[3] / _CONFIG).read_text())
    made = make_recipe("bert", config, overrides)
    assert isinstance(made, EmbedRecipe)
    return made


_CONFIG = "golden/families/bert/config.json"  # 64 positions


def test_the_context_is_as_published_else_as_its_makers_say() -> None:
    cases: list[tuple[dict[str, str], SentenceSettings, int | None, int]] = [
        ({}, SentenceSettings(), None, 64),
        ({}, SentenceSettings(max_length=16), None, 16),
        ({}, SentenceSettings(max_length=512), None, 64),
        ({"MAX_CONTEXT": "48"}, SentenceSettings(max_length=16), None, 48),
        ({"MAX_CONTEXT": "48"}, SentenceSettings(), 20, 20),
    ]
    for published, settings, flag, expected in cases:
        config = ModelServerConfig(max_context=flag)
        assert context_of(recipe(**published), settings, config) == expected


def test_a_context_without_room_for_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a context of 2 tokens holds no text"):
        context_of(recipe(MAX_CONTEXT="2"), SentenceSettings(), ModelServerConfig())


def test_prefix_and_lower_case_come_before_the_tokenizer(tmp_path: Path) -> None:
    serialized = (tiny_bert(tmp_path) / "tokenizer.json").read_text()
    settings = SentenceSettings(lower_case=True, prefix="Q ")
    tokenizer = encoding_as(settings, HfTokenizer(serialized))
    assert tokenizer.encode("AB") == tokenizer.encode("ab") == [2, 21, 5, 32, 3]
