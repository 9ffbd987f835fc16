"""The real Gemma 3 270M gives the reference's greedy tokens (see tools/golden/real)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from tests.model_server.tiny import logits_of
from tests.real_models import gemma3_270m

pytestmark = pytest.mark.nightly

GOLDEN = Path(__file__).parents[2] / "golden" / "gemma3_greedy.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
LONGEST = max(len(case["prompt_ids"] + case["ids"]) for case in CASES)


@pytest.fixture(scope="module")
def checkpoint() -> Iterator[Checkpoint]:
    with closing(open_checkpoint(str(gemma3_270m()))) as opened:
        yield opened


@pytest.fixture(scope="module")
def best(checkpoint: Checkpoint) -> Any:
    """The model as a function: the likeliest next token after each token of a sequence."""
    recipe = make_recipe("auto", checkpoint.config, {"DTYPE": '"float32"'})
    assert isinstance(recipe, Recipe)
    module = recipe.blueprint(checkpoint=checkpoint)
    model = module.assemble(read_weights(module.declarations, checkpoint, lambda _: None))

    def best(ids: list[int]) -> list[int]:
        # All of one length, so that one program serves them; nothing sees what comes after it.
        padded = np.pad(np.asarray(ids), (0, LONGEST - len(ids)))
        return jnp.argmax(logits_of(model, recipe, padded), axis=-1)[: len(ids)].tolist()

    return best


def test_greedy_tokens_are_the_references(best: Any) -> None:
    """Each answer token is the likeliest one after what the reference had before it."""
    found = {
        case["name"]: best(case["prompt_ids"] + case["ids"])[len(case["prompt_ids"]) - 1 : -1]
        for case in CASES
    }
    assert found == {case["name"]: case["ids"] for case in CASES}


def test_prompts_and_answers_have_the_references_ids(checkpoint: Checkpoint) -> None:
    tokenizer = checkpoint.tokenizer()
    for case in CASES:
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"], case["name"]
        assert tokenizer.decode(case["ids"]) == case["text"], case["name"]
