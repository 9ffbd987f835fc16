"""A language model that also embeds and differentiates, on a tiny Llama."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.config import ModelServerConfig
from model_server.loading.loaded import Loaded
from model_server.loading.loader import ModelLoader, make_loader
from model_server.loading.passes.loaded_passes import GradientInput, LoadedEmbedder
from model_server.models.layers.whole_decoder import embedded, hidden_of
from sax.errors import InvalidRequest
from sax.passes import Gradients
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.models import family_cases
from tests.model_server.tiny_bert import save_tokenizer

CASE = "llama_untied_mqa"
SMALL = {
    "DTYPE": '"float32"',
    "MAX_CONTEXT": "64",
    "NUM_CACHE_SLOTS": "1",
    "PASS_CONTEXT": "32",
    "QUERY_FORMAT": '"raw"',
}
IDS = [7, 30, 12, 45, 9, 60, 5]
PREFIX = 3


@pytest.fixture(scope="module")
def loader() -> Iterator[ModelLoader]:
    made = make_loader(ModelServerConfig())  # not strict: the tests themselves compile
    yield made
    made.watch.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    shutil.copytree(family_cases.checkpoint_of(CASE), made, dirs_exist_ok=True)
    save_tokenizer(made)
    return made


def load(loader: ModelLoader, folder: Path | str, **overrides: str) -> Loaded | LoadedEmbedder:
    loaded = loader(spec_of(folder, **SMALL | overrides), quiet)
    assert isinstance(loaded, Loaded | LoadedEmbedder)
    return loaded


@pytest.fixture(scope="module")
def loaded(loader: ModelLoader, folder: Path) -> Iterator[Loaded]:
    made = load(
        loader,
        folder,
        TASKS='["generate", "embed", "gradient"]',
        GRADIENT_WRT_INPUT_TENSOR_NAMES='["embeddings", "weights"]',
        GRADIENT_WRT_MDL_VAR_TENSOR_NAMES='["final_norm.scale"]',
        NORMALIZE="false",
    )
    assert isinstance(made, Loaded)
    yield made
    made.runner.close()


def gradients(loaded: Loaded) -> Gradients:
    assert loaded.gradients is not None
    return loaded.gradients.runner.run([GradientInput(IDS, PREFIX)])[0]


def test_a_gradient_compiles_nothing(loader: ModelLoader, loaded: Loaded) -> None:
    before = loader.compiles_while_serving()
    gradients(loaded)
    assert loader.compiles_while_serving() == before


@cache
def whole() -> Any:
    """The model by an independent path."""
    return family_cases.load(CASE)[0]


@jax.jit
def logits_after(model: Any, vectors: jax.Array) -> jax.Array:
    """f32[T, V], after each of these embeddings, f32[T, D]."""
    return model.logits(hidden_of(model, vectors[None], jnp.asarray([len(vectors)]))[0])


def losses(vectors: np.ndarray, weights: np.ndarray, scale: np.ndarray | None = None) -> float:
    """The loss from the whole model's logits, in float64 after that."""
    model = whole()
    if scale is not None:
        model, _ = family_cases.load(CASE)
        model.final_norm.scale[...] = jnp.asarray(scale)
    logits = np.asarray(logits_after(model, jnp.asarray(vectors)), np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    chosen = logprobs[np.arange(len(vectors)), IDS[1:]]
    return -(weights * chosen).sum() / weights.sum()


@cache
def last_hidden() -> jax.Array:
    """f32[T, D], after each of the tokens."""
    vectors = embedded(whole(), jnp.asarray([IDS]))
    return hidden_of(whole(), vectors, jnp.asarray([len(IDS)]))[0]


@cache
def start() -> tuple[np.ndarray, np.ndarray]:
    vectors = embedded(whole(), jnp.asarray([IDS[:-1]], jnp.int32))[0]
    return np.asarray(vectors), np.ones(len(IDS) - 1)


def test_the_gradient_by_an_embedding_is_the_finite_difference(loaded: Loaded) -> None:
    vectors, weights = start()
    found = np.reshape(gradients(loaded).gradients["gradients/inputs/embeddings"], vectors.shape)
    for token, place in itertools.product((0, 3, 5), (0, 7, 31)):
        step = np.zeros_like(vectors)
        step[token, place] = 1e-2
        slope = (losses(vectors + step, weights) - losses(vectors - step, weights)) / 2e-2
        assert found[token, place] == pytest.approx(slope, abs=2e-4)


def test_the_gradient_by_the_tokens_weights_is_the_finite_difference(loaded: Loaded) -> None:
    vectors, weights = start()
    found = gradients(loaded).gradients["gradients/inputs/weights"]
    assert len(found) == len(IDS) - 1
    for place in range(len(found)):
        step = np.zeros_like(weights)
        step[place] = 1e-3
        slope = (losses(vectors, weights + step) - losses(vectors, weights - step)) / 2e-3
        assert found[place] == pytest.approx(slope, abs=1e-5)


def test_the_gradient_by_a_weight_of_the_model_is_the_finite_difference(loaded: Loaded) -> None:
    vectors, weights = start()
    found = gradients(loaded).gradients["gradients/mdl_vars/final_norm.scale"]
    scale = np.asarray(whole().final_norm.scale[...])
    for place in (0, 11):
        step = np.zeros_like(scale)
        step[place] = 1e-2
        more, less = losses(vectors, weights, scale + step), losses(vectors, weights, scale - step)
        assert found[place] == pytest.approx((more - less) / 2e-2, abs=2e-4)


def test_the_score_is_the_log_probability_of_the_suffix(loaded: Loaded) -> None:
    vectors, weights = start()
    suffix = weights.copy()
    suffix[: PREFIX - 1] = 0
    assert gradients(loaded).score == pytest.approx([-losses(vectors, suffix) * suffix.sum()])


def test_an_embedding_beside_generating_is_that_of_the_embedder(
    loader: ModelLoader, folder: Path, loaded: Loaded
) -> None:
    assert loaded.embedder is not None
    before = loader.compiles_while_serving()
    beside = loaded.embedder.runner.run([IDS, [5, 6]])
    assert gradients(loaded).score
    assert loader.compiles_while_serving() == before
    alone = load(loader, folder, TASKS='["embed"]', NORMALIZE="false")
    assert isinstance(alone, LoadedEmbedder)
    np.testing.assert_allclose(beside, alone.runner.run([IDS, [5, 6]]), atol=1e-5)
    np.testing.assert_allclose(beside[0], np.asarray(last_hidden())[-1], atol=1e-4)
    assert loaded.methods[-3:] == ("lm.embed", "lm.rerank", "lm.gradient")


@pytest.mark.parametrize(
    ("pooling", "of"),
    [
        ("last", -1),
        pytest.param("mean", None, marks=pytest.mark.nightly),
        pytest.param("cls", 0, marks=pytest.mark.nightly),
    ],
)
def test_a_decoder_pools_as_it_was_published(
    loader: ModelLoader, folder: Path, pooling: str, of: int | None
) -> None:
    alone = load(loader, folder, TASKS='["embed"]', POOLING=json.dumps(pooling))
    assert isinstance(alone, LoadedEmbedder)
    hidden = last_hidden()
    wanted = hidden.mean(0) if of is None else hidden[of]
    wanted = np.asarray(wanted / jnp.linalg.norm(wanted))
    np.testing.assert_allclose(alone.runner.run([IDS])[0], wanted, atol=1e-5)


def test_memory_of_the_passes_is_planned(loader: ModelLoader, folder: Path, loaded: Loaded) -> None:
    plain = load(loader, folder)
    assert isinstance(plain, Loaded)
    assert plain.embedder is None
    assert plain.gradients is None
    assert loaded.memory > plain.memory
    plain.runner.close()


def test_tasks_that_cannot_be_done_are_refused_by_name(loader: ModelLoader, folder: Path) -> None:
    cases: list[tuple[dict[str, str], str, str]] = [
        ({"TASKS": '["dance"]'}, "TASKS", "has 'dance'; known are generate, embed"),
        ({"TASKS": '["gradient"]'}, "TASKS", "gradient comes beside generate"),
        ({"TASKS": '["classify"]'}, "TASKS", "ForSequenceClassification"),
        ({"TASKS": '["embed"]', "NUM_STAGES": "2"}, "NUM_STAGES", "has one stage"),
        ({"TASKS": '["embed"]', "ICI_MESH_SHAPE": "[2]"}, "ICI_MESH_SHAPE", "three sizes"),
        (
            {"TASKS": '["generate"]', "RERANK_TOKENS": '["a"]'},
            "RERANK_TOKENS",
            "is for the task rerank, not generate",
        ),
        ({"POOLING": '"best"'}, "POOLING", "must be cls, mean, max, last"),
        ({"MATRYOSHKA": "[0]"}, "MATRYOSHKA", "a list of sizes"),
        *(
            ({"TASKS": '["generate"]', key: value}, key, "for a model that embeds, and this one")
            for key, value in (("POOLING", '"mean"'), ("NORMALIZE", "true"), ("MATRYOSHKA", "true"))
        ),
        (
            {"TASKS": '["generate", "embed"]', "CLASSIFY_ACTIVATION": '"none"'},
            "CLASSIFY_ACTIVATION",
            "is loaded to generate and embed: leave it out",
        ),
        ({"PASS_CONTEXT": "2"}, "PASS_CONTEXT", "at least 3"),
        (
            {
                "TASKS": '["generate", "gradient"]',
                "GRADIENT_WRT_MDL_VAR_TENSOR_NAMES": '["final_norm.scal"]',
            },
            "GRADIENT_WRT_MDL_VAR_TENSOR_NAMES",
            "nearest: final_norm.scale",
        ),
        (
            {"GRADIENT_WRT_INPUT_TENSOR_NAMES": '["ids"]'},
            "GRADIENT_WRT_INPUT_TENSOR_NAMES",
            "has 'ids'; known are embeddings, weights",
        ),
    ]
    for overrides, param, says in cases:
        with pytest.raises(InvalidRequest, match=says) as caught:
            load(loader, folder, **overrides)
        assert caught.value.param == f"overrides.{param}"


def test_texts_of_one_batch_have_their_own_gradients(loader: ModelLoader, folder: Path) -> None:
    made = load(loader, folder, TASKS='["generate", "gradient"]')
    assert isinstance(made, Loaded)
    assert made.gradients is not None
    one, other = GradientInput(IDS, PREFIX), GradientInput([5, 6, 7, 8], 1)
    together = made.gradients.runner.run([other, one, other])
    alone = made.gradients.runner.run([one])[0]
    name = "gradients/inputs/embeddings"
    np.testing.assert_allclose(together[1].gradients[name], alone.gradients[name], atol=1e-5)
    np.testing.assert_allclose(together[1].score, alone.score, atol=1e-4)
    assert len(together[0].gradients[name]) < len(alone.gradients[name])
    made.runner.close()
