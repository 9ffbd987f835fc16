"""A tiny language model that also embeds, ranks and differentiates, through the SDK, the command
line and Saxml's module; and a classifier on the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import sax
from sax.client import Client
from sax.errors import SaxError
from tests.end_to_end.cell import Cell
from tests.end_to_end.passes_model import MODEL, publish_passes

DOCUMENTS = ["z z", "a b", "q r s t"]


@pytest.fixture(scope="module")
def passes(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    publish_passes(cell, tmp_path_factory.mktemp("llama"))
    yield cell
    cell.sax("unpublish", MODEL)


def test_every_door_gives_the_same_gradient(passes: Cell, saxml_of: Callable[[Cell], None]) -> None:
    with Client(passes.plan.admin_address) as client:
        found = client.gradient(MODEL, "a b", " c d")
        (score,) = client.score(MODEL, "a b", [" c d"])
    # Steps and passes sum in another order.
    np.testing.assert_allclose(found.score, [score], rtol=1e-4)
    assert {*found.gradients} == {"gradients/inputs/weights", "gradients/mdl_vars/final_norm.scale"}
    assert all(np.any(values) for values in found.gradients.values())
    printed = json.loads(passes.sax("gradient", MODEL, "a b", " c d").stdout)
    assert printed == {"score": found.score, "gradients": dict(found.gradients)}
    saxml_of(passes)
    assert sax.Model(MODEL).LM().Gradient("a b", " c d") == (found.score, dict(found.gradients))


def test_documents_are_ranked_by_the_cosines_of_their_vectors(passes: Cell) -> None:
    with Client(passes.plan.admin_address) as client:
        query, *vectors = map(np.asarray, client.embed(MODEL, ["a b", *DOCUMENTS]))
        ranked = client.rerank(MODEL, "a b", DOCUMENTS)
        best = client.rerank(MODEL, "a b", DOCUMENTS, top_n=1)
        short = client.embed(MODEL, ["a b"], dimensions=4)[0]
    cosines = [float(query @ each) for each in vectors]
    order = sorted(range(3), key=lambda index: -cosines[index])
    assert [each.index for each in ranked] == order
    assert order[0] == 1, "the query itself is the best document"
    np.testing.assert_allclose(
        [each.relevance_score for each in ranked], sorted(cosines, reverse=True), atol=1e-5
    )
    assert best == ranked[:1]
    np.testing.assert_allclose(short, query[:4] / np.linalg.norm(query[:4]), atol=1e-5)
    printed = passes.sax("rerank", MODEL, "a b", *DOCUMENTS, "--top-n", "2").stdout.splitlines()
    assert [line.split("\t")[1:] for line in printed] == [
        [str(index), DOCUMENTS[index]] for index in order[:2]
    ]
    lines = passes.sax("rerank", MODEL, "a b", *DOCUMENTS, "--json").stdout.splitlines()
    assert [json.loads(line)["index"] for line in lines] == order
    printed = passes.sax("embed", MODEL, "a b", "--dimensions", "4").stdout
    np.testing.assert_allclose(json.loads(printed), short, atol=1e-6)
    answer = passes.complete("a b", model=MODEL, max_tokens=4, ignore_eos=True)
    assert answer.json()["usage"]["completion_tokens"] == 4, answer.text


def test_a_model_without_labels_classifies_nothing_and_says_so(passes: Cell) -> None:
    refused = passes.sax("classify", MODEL, "a b")
    assert refused.returncode == 1
    assert "does not serve lm.classify" in refused.stderr
    with Client(passes.plan.admin_address) as client, pytest.raises(SaxError, match="lm.classify"):
        client.classify(MODEL, ["a b"])
