"""Models that are served by transformers' code, traced, against that code itself.

Needs the extra `torch`, which no environment of the tests has: elsewhere it is skipped. A process
traces each model, which takes some seconds. docs/reference/models.md lists the cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.opening import open_checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.request import EngineRequest
from model_server.engine.types import Sampling
from model_server.kernels import xla
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from model_server.loading.weights import read_weights
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.transformers.transformers import is_installed
from tests.demo_model import COMPILE_CACHE
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.models.in_steps import InSteps
from tests.model_server.models.transformers.cases import Reference, case_names, prompt_of
from tests.model_server.recorded_answers import Recorder

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not is_installed(), reason="the extra torch is not installed"),
]
F32 = {"DTYPE": '"float32"'}
LENGTHS = (23, 1, 9, 16, 30, 5)  # of prompts in one batch


def module_of(folder: Path) -> tuple[Any, Recipe]:
    """Read a folder into a traced model, the way the server does."""
    with closing(open_checkpoint(str(folder))) as checkpoint:
        recipe = make_recipe("transformers", checkpoint.config, F32)
        assert isinstance(recipe, Recipe)
        module = recipe.blueprint(checkpoint=checkpoint)
        needed = without_prefixes(checkpoint, recipe.unused)
        return module.assemble(read_weights(module.declarations, needed, quiet)), recipe


@contextmanager
def engine_of(folder: Path) -> Iterator[Recorder]:
    """The engine over a folder, with its steps compiled."""
    config = ModelServerConfig(
        jax_cache_dir=str(COMPILE_CACHE), slots=4, page_size=16, max_context=64
    )
    loaded = make_loader(config)(spec_of(folder, "transformers", **F32), quiet)
    assert isinstance(loaded, Loaded)
    with closing(loaded.runner), closing(Recorder(loaded.runner)) as recorder:
        yield recorder


def scores_of(logits: np.ndarray, prompt: np.ndarray) -> np.ndarray:
    """f64[S - 1]: log-probabilities of a prompt's tokens but the first."""
    apart = logits.astype(np.float64)
    apart -= apart.max(-1, keepdims=True)
    every = apart - np.log(np.exp(apart).sum(-1, keepdims=True))
    return every[np.arange(len(prompt) - 1), prompt[1:]]


@pytest.mark.parametrize("name", case_names())
def test_logits_equal_transformers_whole_in_chunks_and_in_batches(
    name: str, tmp_path: Path
) -> None:
    """The chunks end inside pages, one token at a time follows; the batches are the engine's."""
    reference = Reference(name)
    folder, prompt = reference.save(tmp_path / "model"), prompt_of(LENGTHS[0])
    wanted = reference.logits(prompt)
    steps = InSteps(*module_of(folder), len(prompt), xla.KERNEL)
    for chunks in ((len(prompt),), (6, 6)):
        found = steps.logits(prompt, chunks)
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)
    prompts = [prompt_of(length, seed) for seed, length in enumerate(LENGTHS)]
    requests = [
        EngineRequest(
            prompt=tuple(map(int, each)),
            sampling=Sampling(0.0, 0, 1.0, seed=0),
            max_tokens=4,
            stop_ids=frozenset(),
            score_from=1 if len(each) > 1 else None,
        )
        for each in prompts
    ]
    with engine_of(folder) as recorder:
        answers = recorder.answers(requests, at_once=len(requests))
    for each, answer in zip(prompts, answers, strict=True):
        whole = np.array([*each, *answer.tokens])
        scores = scores_of(reference.logits(whole), whole)
        np.testing.assert_allclose(answer.logprobs, scores, atol=1e-3)
        assert len(answer.tokens) == 4
