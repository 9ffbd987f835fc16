"""An embedding model through every door, from a tiny BERT on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import openai
import pytest

import sax
from sax.client import Client
from sax.errors import InvalidRequest, PromptTooLong
from sax.types import GenerateRequest
from tests.end_to_end.cell import Cell
from tests.model_server.models.family_cases import golden_of
from tests.model_server.tiny_bert import tiny_bert

pytestmark = pytest.mark.timeout(900)

MODEL = "/sax/test/embedder"
GOLDEN = golden_of("bert")
IDS = tuple(GOLDEN["prompt"].tolist())


@pytest.fixture(scope="module")
def embedder(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    folder: Path = tiny_bert(tmp_path_factory.mktemp("bert"))
    cell.publish(
        str(folder), model=MODEL, model_path="auto", overrides={"MAX_CONTEXT": 32, "BATCH_SIZE": 4}
    )
    yield cell
    cell.sax("unpublish", MODEL)


def test_the_vectors_are_the_reference_implementations(embedder: Cell) -> None:
    with Client(embedder.plan.admin_address) as client:
        vectors = client.embed(MODEL, [IDS, "abc", IDS])
    np.testing.assert_allclose(vectors[0], GOLDEN["pooled"], atol=1e-5)
    np.testing.assert_allclose(vectors[2], vectors[0], atol=1e-6)


@pytest.mark.smoke
def test_every_door_gives_the_same_vector(embedder: Cell, saxml_of: Callable[[Cell], None]) -> None:
    with Client(embedder.plan.admin_address) as client:
        expected = client.embed(MODEL, ["abc"])[0]
    with openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none") as client:
        reply = client.embeddings.create(model="embedder", input=["abc", "de"])
    np.testing.assert_allclose(reply.data[0].embedding, expected, atol=1e-6)
    assert reply.usage.prompt_tokens == 9  # a start and an end to each
    printed = embedder.sax("embed", MODEL, "abc").stdout
    np.testing.assert_allclose(json.loads(printed), expected, atol=1e-6)
    saxml_of(embedder)
    np.testing.assert_allclose(sax.Model(MODEL).LM().Embed("abc"), expected, atol=1e-6)


def test_a_long_input_is_refused_with_both_numbers(embedder: Cell) -> None:
    with (
        Client(embedder.plan.admin_address) as client,
        pytest.raises(PromptTooLong, match="input 1 has 42 tokens and this model reads at most 32"),
    ):
        client.embed(MODEL, ["abc", "a b " * 20])
    with (
        openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none") as client,
        pytest.raises(openai.BadRequestError, match="input has 42 tokens"),
    ):
        client.embeddings.create(model="embedder", input="a b " * 20)


def test_an_embedder_generates_nothing_and_says_so(embedder: Cell) -> None:
    says = "is an embedding model and does not serve lm.generate"
    with (
        Client(embedder.plan.admin_address) as client,
        pytest.raises(InvalidRequest, match=says),
    ):
        list(client.generate(GenerateRequest(model_id=MODEL, prompt="abc")))
    answer = embedder.complete("abc", model=MODEL)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    saxml = embedder.http.post("/generate", json={"model": MODEL, "query": "abc"})
    assert says in saxml.text
    assert "sax_compiles_while_serving_total 0.0" in embedder.metrics_page()


def test_a_language_model_embeds_nothing_and_says_so(served: Cell) -> None:
    refused = served.sax("embed", "/sax/test/smollm2", "abc")
    assert refused.returncode == 1
    assert "is a language model and does not serve lm.embed; it serves lm.gen" in refused.stderr
