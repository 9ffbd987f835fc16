"""A Phi-3 that outgrows its original context answers as its whole-sequence evaluation does."""

from __future__ import annotations

from typing import Any

from model_server.engine.buckets import closed_set
from model_server.engine.limits import EngineLimits
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest
from model_server.engine.running.runner import ModelRunner
from model_server.engine.scheduler import Scheduler
from model_server.engine.step_program import StepProgram
from model_server.engine.types import Sampling
from model_server.kernels import xla
from model_server.loading.random_weights import random_weights
from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import F32, config_of, golden_of
from tests.model_server.tiny import PAGE, WholeSequences, empty_pages

CASE = "phi3_longrope_long"  # its original context is 16 tokens, and what it serves 128
PROMPT = tuple(golden_of(CASE)["prompt"].tolist())
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


class Phi3:
    """The case's model with random weights, whole and behind a scheduler and a runner."""

    def __init__(self) -> None:
        recipe: Any = make_recipe("auto", config_of(CASE), F32)
        self.recipe = recipe
        self.limits = EngineLimits(
            slots=2,
            pages=16,
            page_size=PAGE,
            max_context=48,
            token_budget=17,
            max_logit_rows=2,
            prefill_block=8,
            short_context=recipe.short_context,
        )
        module = recipe.blueprint()
        leaves = random_weights(module.declarations, 3, lambda _: None)
        model = module.assemble([leaf.copy() for leaf in leaves])
        self._short, self._long = (
            WholeSequences(model, recipe, length) for length in (recipe.short_context, 24)
        )
        pages = empty_pages(recipe, self.limits.pages)
        program = StepProgram(module, leaves, pages, self.limits, xla.KERNEL, vocab=recipe.vocab)
        self.runner = ModelRunner(program, leaves, pages, closed_set(self.limits.slots, (2,)))
        self.runner.compile(lambda _: None)

    def answers(self, requests: dict[int, tuple[int, int]]) -> dict[int, list[int]]:
        """Greedy tokens by id, for prompts of a length and answers of a length, side by side."""
        scheduler = Scheduler(self.limits)
        answers: dict[int, list[int]] = {id: [] for id in requests}
        for id, (length, count) in requests.items():
            request = EngineRequest(
                prompt=PROMPT[:length], sampling=GREEDY, max_tokens=count, stop_ids=frozenset()
            )
            scheduler.add(new_sequence(id, request, self.limits))
        while step := scheduler.schedule():
            for update in scheduler.commit(step, self.runner.launch(step).result()[0]):
                assert update.result.token is not None
                answers[update.sequence].append(update.result.token)
        return answers

    def likeliest(self, tokens: list[int]) -> list[int]:
        """The likeliest token after each prefix, of short prefixes by the short factors."""
        most = self.limits.short_context
        assert most is not None
        short = self._short.logits(tokens[:most]).argmax(-1).tolist()
        return short + self._long.logits(tokens).argmax(-1).tolist()[most:]


def test_answers_on_both_sides_of_the_original_context_and_across_it() -> None:
    phi3 = Phi3()
    try:
        requests = {1: (12, 8), 2: (5, 3)}  # one crosses while another does not
        for id, answer in phi3.answers(requests).items():
            length, count = requests[id]
            assert len(answer) == count
            after_each = phi3.likeliest([*PROMPT[:length], *answer])
            assert after_each[length - 1 : -1] == answer
    finally:
        phi3.runner.close()
