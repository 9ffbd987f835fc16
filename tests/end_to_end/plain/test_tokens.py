"""A late-interaction model and a classifier of tokens through every door, from folders on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sax.client import Client
from sax.errors import InvalidRequest
from tests.end_to_end.cell import Cell
from tests.model_server.sentence_folders import golden_sentences, sentence_folder

LATE, TAGGER = "/sax/test/colbert", "/sax/test/tags"

pytestmark = pytest.mark.nightly


def test_vectors_of_tokens_and_their_scores_are_the_references(cell: Cell, tmp_path: Path) -> None:
    golden = golden_sentences("colbert", "tokens")
    query, document = golden["queries"][0], golden["documents"]
    texts = [each["text"] for each in document]
    folder = sentence_folder(tmp_path, "colbert", "tokens")
    cell.publish(str(folder), model=LATE, model_path="auto", overrides={"DTYPE": "float32"})
    with Client(cell.plan.admin_address) as client:
        [vectors] = client.embed_tokens(LATE, [query["text"]], prompt_name="query")
        scores = client.score_pairs(LATE, [query["text"]], texts).scores
        with pytest.raises(InvalidRequest, match="has a vector per token"):
            client.embed(LATE, ["a"])
        with pytest.raises(InvalidRequest, match="does not serve lm.classify"):
            client.entities(LATE, ["a"])
    np.testing.assert_allclose(vectors, query["vectors"], atol=1e-4)
    np.testing.assert_allclose(scores, golden["scores"][0], atol=1e-3)
    body = {"model": LATE, "input": texts, "task": "token_embed"}
    pooled = cell.http.post("/pooling", json=body).json()["data"]
    for found, wanted in zip(pooled, document, strict=True):
        np.testing.assert_allclose(found["data"], wanted["vectors"], atol=1e-4)
    ranked = cell.http.post(
        "/v1/rerank", json={"model": LATE, "query": query["text"], "documents": texts}
    ).json()["results"]
    best = sorted(golden["scores"][0], reverse=True)
    np.testing.assert_allclose([each["relevance_score"] for each in ranked], best, atol=1e-3)
    refused = cell.http.post("/v1/embeddings", json={"model": LATE, "input": "a"})
    assert refused.status_code == 400
    assert "use POST /pooling" in refused.json()["error"]["message"]
    cell.sax("unpublish", LATE)


def test_entities_are_the_references(cell: Cell, tmp_path: Path) -> None:
    golden = golden_sentences("qwen3_tags", "tokens")
    folder = sentence_folder(tmp_path, "qwen3_tags", "tokens")
    cell.publish(str(folder), model=TAGGER, model_path="auto", overrides={"DTYPE": "float32"})
    text, wanted = golden["texts"][0], golden["answers"]["average"][0]
    body = {"model": TAGGER, "input": text, "aggregation_strategy": "average"}
    [entry] = cell.http.post("/v1/classify", json=body).json()["data"]
    places = [(each["entity_group"], each["start"], each["end"]) for each in wanted]
    found = [(each["entity_group"], each["start"], each["end"]) for each in entry["entities"]]
    assert found == places
    printed = cell.sax("classify", TAGGER, text, "--aggregation", "average").stdout.splitlines()
    assert [line.split("\t")[0] for line in printed] == [each["entity_group"] for each in wanted]
    with Client(cell.plan.admin_address) as client:
        [entities] = client.entities(TAGGER, [text], aggregation="average")
        with pytest.raises(InvalidRequest, match="gives each token a label"):
            client.classify(TAGGER, [text])
    assert [(each.label, each.start, each.end) for each in entities] == places
    cell.sax("unpublish", TAGGER)
