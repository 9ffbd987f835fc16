"""Models with a vector or labels per token, from text to numbers, against transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.loading.loader import ModelLoader
from model_server.loading.passes.loaded_passes import LoadedTokens, TokenText
from sax.errors import CheckpointError, InvalidRequest, SaxError
from sax.passes import Aggregation, TokenScores, entities_of
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.sentence_folders import golden_sentences, sentence_folder

GROUPED: tuple[Aggregation, ...] = ("simple", "first", "average", "max")


def load(loader: ModelLoader, folder: Path, **overrides: str) -> LoadedTokens:
    loaded = loader(spec_of(folder, **{"DTYPE": '"float32"'} | overrides), quiet)
    assert isinstance(loaded, LoadedTokens)
    return loaded


def folder_of(tmp_path: Path, case: str, **config: Any) -> Path:
    return sentence_folder(tmp_path, case, "tokens", **config)


@pytest.mark.parametrize(
    "case",
    ["colbert", "pylate_qwen3", pytest.param("pylate_modernbert", marks=pytest.mark.nightly)],
)
def test_vectors_of_tokens_are_the_reference_implementations_in_any_batch(
    loader: ModelLoader, tmp_path: Path, case: str
) -> None:
    """Queries are filled up with masks where the folder says so, and punctuation has no vector."""
    golden = golden_sentences(case, "tokens")
    loaded = load(loader, folder_of(tmp_path, case))
    assert loaded.late is not None
    assert loaded.methods == ("lm.embed", "lm.rerank")
    texts = [("query", each) for each in golden["queries"]]
    texts += [("document", each) for each in golden["documents"]]
    read = [loaded.late.encode(each["text"], role) for role, each in texts]
    assert [each.ids for each in read] == [each["ids"] for _, each in texts]
    together = loaded.runner.run([TokenText(each.ids, each.seen) for each in read])
    for (_, wanted), text, found in zip(texts, read, together, strict=True):
        [alone] = loaded.runner.run([TokenText(text.ids, text.seen)])
        for vectors in (found, alone):
            assert isinstance(vectors, np.ndarray)
            np.testing.assert_allclose(vectors[text.kept], wanted["vectors"], atol=1e-4)
    assert loaded.dimensions == len(golden["queries"][0]["vectors"][0])
    assert loader.compiles_while_serving() == 0


@pytest.mark.parametrize(
    "case",
    [
        *("bert_tags", "qwen3_tags"),
        *(
            pytest.param(case, marks=pytest.mark.nightly)
            for case in ("modernbert_tags", "xlm_roberta_tags")
        ),
    ],
)
def test_scores_and_places_of_tokens_are_those_of_transformers_pipeline(
    loader: ModelLoader, tmp_path: Path, case: str
) -> None:
    golden = golden_sentences(case, "tokens")
    loaded = load(loader, folder_of(tmp_path, case))
    assert loaded.methods == ("lm.classify",)
    read = [loaded.tokenizer.encode_placed(text) for text in golden["texts"]]
    found = loaded.runner.run([TokenText([t.id for t in text], len(text)) for text in read])
    for tokens, scores, wanted in zip(read, found, golden["answers"]["none"], strict=True):
        assert isinstance(scores, np.ndarray)
        kept = [place for place, token in enumerate(tokens) if not token.special]
        assert kept == [each["index"] for each in wanted]
        assert [tokens[i][1:3] for i in kept] == [(each["start"], each["end"]) for each in wanted]
        best = scores[kept].max(axis=1)
        np.testing.assert_allclose(best, [each["score"] for each in wanted], atol=1e-4)
        labels = [loaded.labels[i] for i in scores[kept].argmax(axis=1)]
        assert labels == [each["entity"] for each in wanted]
    for strategy in GROUPED:
        for number, wanted in enumerate(golden["answers"][strategy]):
            places = zip(found[number].tolist(), read[number], strict=True)
            placed = [TokenScores(each, *token[1:]) for each, token in places]
            text = golden["texts"][number]
            entities = entities_of(placed, text, loaded.labels, strategy)
            assert [(each.label, each.start, each.end) for each in entities] == [
                (each["entity_group"], each["start"], each["end"]) for each in wanted
            ], strategy
            scores = [each.score for each in entities]
            np.testing.assert_allclose(scores, [each["score"] for each in wanted], atol=1e-4)


def test_what_a_folder_cannot_mean_is_named(loader: ModelLoader, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "colbert")
    path = folder / "artifact.metadata"
    given = json.loads(path.read_text())
    cases: list[tuple[dict[str, Any], dict[str, str], type[SaxError], str]] = [
        ({"similarity": "l2"}, {}, CheckpointError, "similarity = 'l2'; supported is 'cosine'"),
        ({"doc_token_id": "[none]"}, {}, CheckpointError, r"no token '\[none\]'"),
        ({"query_maxlen": "32"}, {}, CheckpointError, "query_maxlen = '32'"),
        ({"attend_to_mask_tokens": 1}, {}, CheckpointError, "must be true or false"),
        ({}, {"POOLING": '"mean"'}, InvalidRequest, "POOLING is for models with one vector"),
    ]
    for change, overrides, kind, says in cases:
        path.write_text(json.dumps(given | change))
        with pytest.raises(kind, match=says):
            load(loader, folder, **overrides)
