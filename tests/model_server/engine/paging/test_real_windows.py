"""The real Gemma 3 270M gives its own tokens far beyond its window of 512."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from model_server.checkpoints.opening import open_checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.paging.window_pages import window_page_count
from model_server.engine.request import EngineRequest
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from model_server.loading.weights import read_weights
from model_server.models.registry import make_recipe
from sax.types import ModelSpec
from tests.demo_model import COMPILE_CACHE
from tests.model_server.engine.paging.test_shared_pages import prompts_of, served
from tests.model_server.tiny import logits_of
from tests.real_models import gemma3_270m

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

CONTEXT = 1024
OVERRIDES = {"DTYPE": '"float32"', "SPECULATION": '"off"'}
TEXT = Path(__file__).parents[4] / "docs" / "explanation" / "reliability.md"
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    spec = ModelSpec(
        model_id="/sax/test/gemma3",
        model_path="auto",
        checkpoint=str(gemma3_270m()),
        replicas=1,
        overrides=OVERRIDES,
    )
    config = ModelServerConfig(
        jax_cache_dir=str(COMPILE_CACHE),
        slots=2,
        page_size=16,
        max_context=CONTEXT,
        prefix_cache="off",
    )
    made = make_loader(config)(spec, lambda progress: None)
    assert isinstance(made, Loaded)
    with closing(made.runner):
        yield made


@pytest.fixture(scope="module")
def likeliest() -> Any:
    """The likeliest token after each of a whole sequence."""
    with closing(open_checkpoint(str(gemma3_270m()))) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, OVERRIDES)
        module = recipe.blueprint(checkpoint=checkpoint)
        model = module.assemble(read_weights(module.declarations, checkpoint, lambda _: None))

    def likeliest(tokens: list[int]) -> list[int]:
        padded = np.pad(np.asarray(tokens), (0, CONTEXT - len(tokens)))
        return jnp.argmax(logits_of(model, recipe, padded), axis=-1).tolist()

    return likeliest


def test_answers_and_their_next_turns_are_the_models_own(loaded: Loaded, likeliest: Any) -> None:
    limits = loaded.runner.limits
    assert limits.windows.sliding == 512
    assert window_page_count(limits) < limits.pages == 2 * CONTEXT // 16
    words = loaded.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    asked = [
        EngineRequest(
            prompt=tuple(words[first : first + 700]),
            sampling=GREEDY,
            max_tokens=20,
            stop_ids=frozenset(),
        )
        for first in (0, 700, 1400)
    ]
    found, scheduler = served(loaded.runner, asked)
    assert scheduler.load().window_pages_used == 0
    for prompt, answer in zip(prompts_of(asked, found), found, strict=True):
        assert likeliest([*prompt, *answer])[len(prompt) - 1 :][: len(answer)] == answer
