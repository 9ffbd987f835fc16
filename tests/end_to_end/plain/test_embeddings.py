"""An embedding model through every door, from a tiny BERT on disk."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import openai
import pytest

import sax
from sax.client import Client
from sax.errors import InvalidRequest, PromptTooLong
from sax.types import GenerateRequest
from tests.end_to_end.cell import Cell
from tests.end_to_end.plain.conftest import EMBEDDER
from tests.model_server.models.family_cases import golden_of


def test_the_vectors_are_the_reference_implementations(embedding: Cell) -> None:
    golden = golden_of("bert")
    ids = tuple(golden["prompt"].tolist())
    with Client(embedding.plan.admin_address) as client:
        vectors = client.embed(EMBEDDER, [ids, "abc", ids])
    np.testing.assert_allclose(vectors[0], golden["pooled"], atol=1e-5)
    np.testing.assert_allclose(vectors[2], vectors[0], atol=1e-6)


def test_every_door_gives_the_same_vector(
    embedding: Cell, saxml_of: Callable[[Cell], None]
) -> None:
    with Client(embedding.plan.admin_address) as client:
        expected = client.embed(EMBEDDER, ["abc"])[0]
    with openai.OpenAI(base_url=f"{embedding.url}/v1", api_key="none") as client:
        reply = client.embeddings.create(model="embedder", input=["abc", "de"])
    np.testing.assert_allclose(reply.data[0].embedding, expected, atol=1e-6)
    assert reply.usage.prompt_tokens == 9  # a start and an end to each
    printed = embedding.sax("embed", EMBEDDER, "abc").stdout
    np.testing.assert_allclose(json.loads(printed), expected, atol=1e-6)
    saxml_of(embedding)
    np.testing.assert_allclose(sax.Model(EMBEDDER).LM().Embed("abc"), expected, atol=1e-6)


def test_a_long_input_is_refused_with_both_numbers(embedding: Cell) -> None:
    with (
        Client(embedding.plan.admin_address) as client,
        pytest.raises(PromptTooLong, match="input 1 has 42 tokens and .* length is 32"),
    ):
        client.embed(EMBEDDER, ["abc", "a b " * 20])
    with (
        openai.OpenAI(base_url=f"{embedding.url}/v1", api_key="none") as client,
        pytest.raises(openai.BadRequestError, match="input has 42 tokens"),
    ):
        client.embeddings.create(model="embedder", input="a b " * 20)


def test_an_embedder_generates_nothing_and_says_so(embedding: Cell) -> None:
    says = "is an embedding model and does not serve lm.generate"
    with (
        Client(embedding.plan.admin_address) as client,
        pytest.raises(InvalidRequest, match=says),
    ):
        list(client.generate(GenerateRequest(model_id=EMBEDDER, prompt="abc")))
    answer = embedding.complete("abc", model=EMBEDDER)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    saxml = embedding.http.post("/generate", json={"model": EMBEDDER, "query": "abc"})
    assert says in saxml.text


def test_a_language_model_embeds_nothing_and_says_so(served: Cell) -> None:
    refused = served.sax("embed", "/sax/test/smollm2", "abc")
    assert refused.returncode == 1
    assert "is a language model and does not serve lm.embed; it serves lm.gen" in refused.stderr
