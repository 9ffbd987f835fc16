"""A real runner with the prefix cache gives the tokens that it gives without."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.buckets import closed_set
from model_server.engine.drafting.drafting import Drafting
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest
from model_server.engine.running.runner import ModelRunner
from model_server.engine.scheduler import Scheduler
from model_server.engine.step_program import COPIES, StepProgram
from model_server.engine.types import Sampling
from model_server.kernels import xla
from model_server.kernels.pages import allocate, copy_pages
from model_server.loading.random_weights import random_weights
from model_server.models.registry import make_recipe
from tests.model_server.tiny import PAGE, empty_pages

WINDOW = 12
MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "sliding_window": WINDOW,
}
LIMITS = EngineLimits(
    slots=3,
    pages=11,  # not enough for three long sequences: some are preempted
    page_size=PAGE,
    max_context=64,
    token_budget=18,
    max_logit_rows=3,
    prefill_block=8,
)
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


class TinyMistral:
    """A model whose layers have a window, or none, and runners of it."""

    def __init__(self, window: int | None) -> None:
        config = {**MISTRAL, "sliding_window": window}
        self.recipe: Any = make_recipe("auto", config, {"DTYPE": '"float32"'})
        self._module = self.recipe.blueprint()
        self._leaves = random_weights(self._module.declarations, 3, lambda _: None)

    def runner(self, sharing: PrefixSharing) -> ModelRunner:
        limits = replace(
            LIMITS, prefix_cache=sharing, windows=WindowLimits(every=self.recipe.window)
        )
        leaves = [leaf.copy() for leaf in self._leaves]
        pages = empty_pages(self.recipe, limits.pages)
        program = StepProgram(
            self._module, leaves, pages, limits, xla.KERNEL, vocab=self.recipe.vocab
        )
        runner = ModelRunner(program, leaves, pages, closed_set(limits.slots, (1, 2)))
        runner.compile(lambda _: None)
        return runner


def storm() -> list[EngineRequest]:
    """Prompts that begin alike, chats that go on, and samples of one prompt."""
    rng = np.random.default_rng(5)
    system = rng.integers(0, 97, 19).tolist()
    prompts = [[*system, *rng.integers(0, 97, size).tolist()] for size in (3, 0, 9, 14)]
    prompts += [prompts[2]] * 3
    return [
        EngineRequest(
            prompt=tuple(prompt), sampling=GREEDY, max_tokens=18, stop_ids=frozenset(), salt="t"
        )
        for prompt in prompts
    ]


def served(
    runner: ModelRunner, asked: list[EngineRequest], drafting: Drafting | None = None
) -> tuple[list[list[int]], Scheduler]:
    """Serve all at once, then the next turn of each, one step ahead of what is read."""
    scheduler = Scheduler(runner.limits, parts=[drafting] if drafting else [])
    tokens: dict[int, list[int]] = {}
    turns = [asked]
    for _ in range(2):
        for request in turns[-1]:
            tokens[len(tokens) + 1] = []
            scheduler.add(new_sequence(len(tokens), request, runner.limits))
        first = len(tokens) - len(asked)
        _drive(scheduler, runner, tokens)
        turns.append(
            [
                replace(request, prompt=(*request.prompt, *tokens[first + at], 5), max_tokens=4)
                for at, request in enumerate(turns[-1], 1)
            ]
        )
    return list(tokens.values()), scheduler


def prompts_of(asked: list[EngineRequest], answers: list[list[int]]) -> list[list[int]]:
    """The prompts of the turns that `served` plays."""
    prompts = [list(request.prompt) for request in asked]
    while len(prompts) < len(answers):
        before = len(prompts) - len(asked)
        prompts.append([*prompts[before], *answers[before], 5])
    return prompts


def _drive(scheduler: Scheduler, runner: ModelRunner, tokens: dict[int, list[int]]) -> None:
    in_flight = None
    while scheduler.load().live or in_flight:
        step = scheduler.schedule()
        launched = (step, runner.launch(step)) if step else None
        if in_flight:
            for update in scheduler.commit(in_flight[0], in_flight[1].result()[0]):
                assert update.result.token is not None
                tokens[update.sequence].append(update.result.token)
        in_flight = launched


@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.nightly), WINDOW])
def test_tokens_are_the_same_with_and_without_the_cache(window: int | None) -> None:
    tiny = TinyMistral(window)
    assert tiny.recipe.window == window
    wanted, without = served(tiny.runner("off"), storm())
    got, cached = served(tiny.runner("tenant"), storm())
    assert got == wanted
    assert cached.preemptions or window, "a window leaves pages for all"
    assert cached.load().prefix_hits > 0
    assert cached.prefill_tokens < without.prefill_tokens / 2


def test_copied_pages_are_read_before_any_is_written() -> None:
    """Page 1 goes to 2 while 2 goes to 3; the rest of the call is padding."""
    recipe: Any = make_recipe("auto", MISTRAL, {"DTYPE": '"float32"'})
    numbers = np.random.default_rng(0)
    copies = np.zeros((COPIES, 2), np.int32)
    copies[:2] = (1, 2), (2, 3)
    for dtype in ("float32", "int8"):
        pages = jax.tree.map(
            lambda leaf: jax.numpy.asarray(numbers.normal(size=leaf.shape) * 9, leaf.dtype),
            allocate(recipe.cache(1), 4, PAGE, jax.numpy.dtype(dtype)),
        )
        copied = jax.jit(copy_pages)(pages, copies)
        for before, after in zip(jax.tree.leaves(pages), jax.tree.leaves(copied), strict=True):
            np.testing.assert_array_equal(after, np.asarray(before)[[0, 1, 1, 2, 4]], dtype)
