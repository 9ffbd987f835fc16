"""The real all-MiniLM-L6-v2 gives the reference's embeddings (see tools/golden/real)."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.huggingface.sentence_transformers import read_sentence_settings
from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.passes.text_settings import encoding_as
from model_server.loading.weights import read_weights
from model_server.models.layers.embedder import EmbedRecipe, pooled
from model_server.models.registry import make_recipe
from tests.real_models import minilm

GOLDEN = Path(__file__).parents[3] / "golden"
PAIRS = json.loads((GOLDEN / "minilm_embeddings.json").read_text(encoding="utf-8"))["pairs"]
EMBEDDINGS = np.load(GOLDEN / "minilm_embeddings.npz")["embeddings"]  # f32[20, 384]
TEXTS = [text for pair in PAIRS for text in pair["texts"]]
IDS = [ids for pair in PAIRS for ids in pair["ids"]]


@pytest.fixture(scope="module")
def embedded() -> np.ndarray:
    """f32[20, 384]: all sentences in one batch, from the reference's token ids."""
    folder = minilm()
    settings = read_sentence_settings(folder)
    with closing(open_checkpoint(str(folder))) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, {})
        assert isinstance(recipe, EmbedRecipe)
        module = recipe.blueprint()
        needed = without_prefixes(checkpoint, recipe.unused)
        model = module.assemble(read_weights(module.declarations, needed, lambda _: None))
    tokens = np.zeros((len(IDS), max(map(len, IDS))), np.int32)
    for row, ids in zip(tokens, IDS, strict=True):
        row[: len(ids)] = ids
    lengths = jnp.asarray([len(ids) for ids in IDS])
    hidden = model(jnp.asarray(tokens), lengths)
    assert settings.pooling is not None
    vectors = pooled(hidden, lengths, pooling=settings.pooling, normalise=settings.normalise)
    return np.asarray(vectors)


def test_embeddings_are_the_references(embedded: np.ndarray) -> None:
    np.testing.assert_allclose(embedded, EMBEDDINGS, atol=1e-5)


def test_sentences_are_as_alike_as_the_reference_says(embedded: np.ndarray) -> None:
    cosines = (embedded[::2] * embedded[1::2]).sum(-1)
    assert cosines == pytest.approx([pair["cosine"] for pair in PAIRS], abs=1e-5)


def test_eating_food_and_eating_a_meal_are_alike(embedded: np.ndarray) -> None:
    """The figure people know from the model's card, of the sentences about a man."""
    at = TEXTS.index("A man is eating food.")
    assert round(float(embedded[at] @ embedded[at + 1]), 3) == 0.926


def test_sentences_have_the_references_ids() -> None:
    folder = minilm()
    settings = read_sentence_settings(folder)
    with closing(open_checkpoint(str(folder))) as checkpoint:
        tokenizer = encoding_as(settings, checkpoint.tokenizer())
        found = [tokenizer.encode(text) for text in TEXTS]
    longest = settings.max_length
    for text, ids, wanted in zip(TEXTS, found, IDS, strict=True):
        if longest is None or len(ids) <= longest:
            assert ids == wanted, text
        else:  # the reference cuts, the server refuses: the ids up to the cut are the same
            assert ids[: longest - 1] == wanted[:-1]
