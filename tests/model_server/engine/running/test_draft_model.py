"""A draft model follows every step of a tiny model, and its tokens leave answers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from msgspec.structs import replace

from model_server.engine.buckets import closed_set
from model_server.engine.drafting.drafting import Drafting
from model_server.engine.drafting.drafts import Drafts
from model_server.engine.limits import EngineLimits
from model_server.engine.request import EngineRequest
from model_server.engine.running.draft_model import DraftModel
from model_server.engine.running.draft_program import DraftProgram
from model_server.engine.running.ops import Beginning, Proposals, Propose
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_program import StepProgram
from model_server.engine.step_times import StepTimes
from model_server.engine.types import Sampling
from model_server.kernels import xla
from model_server.loading.random_weights import random_weights
from model_server.models.registry import make_recipe
from tests.model_server.engine.drafting.driving import answers, tokens_of
from tests.model_server.engine.running.test_runner import TINY
from tests.model_server.tiny import PAGE, empty_pages

SLOTS, MOST = 8, 4
LIMITS = EngineLimits(
    slots=SLOTS,
    pages=40,
    page_size=PAGE,
    max_context=64,
    token_budget=40,
    max_logit_rows=SLOTS,
    prefill_block=8,
    max_prefill_blocks=4,
    draft_tokens=MOST,
    prefix_cache="tenant",
)
BUCKETS = closed_set(SLOTS, (4,))
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
WARM = Sampling(temperature=0.8, top_k=5, top_p=1.0, seed=3)
# A step of any size takes as long, so every draft token that may be right is tried.
TIMES = StepTimes.measured(BUCKETS, [1.0] * len(BUCKETS), 8)


def parts(seed: int, kind: Callable[..., Any], **sizes: str) -> tuple[Any, list[jax.Array], Any]:
    """The program, weights and pages of a tiny model."""
    recipe: Any = make_recipe(
        "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest", None, {**TINY, **sizes}
    )
    module = recipe.blueprint()
    leaves = random_weights(module.declarations, seed, lambda _: None)
    pages = empty_pages(recipe, LIMITS.pages)
    program = kind(module, leaves, pages, LIMITS, xla.KERNEL, vocab=recipe.vocab)
    return program, leaves, pages


def built(seed: int, **sizes: str) -> ModelRunner:
    """A tiny model, and a draft model whose weights are those of this seed; not compiled yet."""
    made = parts(seed, partial(DraftProgram, most=MOST, known=97), **sizes)
    return ModelRunner(*parts(3, StepProgram), BUCKETS, [DraftModel(*made, BUCKETS)])


@contextmanager
def with_draft(seed: int, **sizes: str) -> Iterator[ModelRunner]:
    runner = built(seed, **sizes)
    runner.compile(lambda _: None)
    for index in range(runner.warmups):
        runner.warm(index)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def itself() -> Iterator[ModelRunner]:
    with with_draft(3) as runner:
        yield runner


@pytest.fixture(scope="module")
def stranger() -> Iterator[ModelRunner]:
    """A smaller draft model with other weights."""
    with with_draft(7, NUM_LAYERS="1", MODEL_DIMS="16") as runner:
        yield runner


def asked(first: int, count: int, sampling: Sampling = GREEDY) -> EngineRequest:
    return EngineRequest(
        prompt=tuple((first * 31 + 7 * place) % 97 for place in range(11 + first)),
        sampling=sampling,
        max_tokens=count,
        stop_ids=frozenset(),
    )


def drafted(runner: ModelRunner, requests: list[EngineRequest]) -> tuple[list[list[int]], Drafts]:
    """The tokens of each request, and what the draft model did for them."""
    drafts = Drafts(runner, PAGE)
    made = answers(runner, requests, Drafting(MOST, SLOTS, TIMES, drafts))
    return [tokens_of(each) for each in made], drafts


def proposed(runner: ModelRunner, beginnings: list[Beginning]) -> Proposals:
    return runner.do(Propose(tuple(beginnings))).result()


def plain(runner: ModelRunner, requests: list[EngineRequest]) -> list[list[int]]:
    return [tokens_of(each) for each in answers(runner, requests)]


def unlike(runner: ModelRunner) -> list[tuple[int, int]]:
    """Pages and offsets where the keys of the two models differ; both are the same model."""
    draft = next(part for part in runner.parts if isinstance(part, DraftModel))
    own, with_draft = (np.asarray([*layers].pop().keys) for layers in (runner.pages, draft.pages))
    apart = np.abs(own - with_draft).max(axis=(1, 2)) > 1e-4  # [P + 1, G]
    return [(int(page), int(at)) for page, at in zip(*np.where(apart), strict=True) if page]


def test_a_model_as_its_own_draft_is_always_right(itself: ModelRunner) -> None:
    """Across page borders, and between draft tokens that repeat what was there before."""
    made, drafts = drafted(itself, [asked(0, 40)])
    assert made == plain(itself, [asked(0, 40)])
    assert drafts.proposed == drafts.accepted > 8


def test_it_follows_every_step(itself: ModelRunner) -> None:
    """Long and short prompts that share pages, answers with draft tokens and without."""
    prompt = tuple(range(40))
    requests = [replace(asked(0, 9), prompt=(*prompt[: 21 + place], 90)) for place in range(5)]
    requests += [asked(each, 30) for each in range(4)]
    made, drafts = drafted(itself, requests)
    assert drafts.proposed > 0
    assert unlike(itself) == []
    assert made == plain(itself, requests)
    assert unlike(itself) == []


@pytest.mark.nightly
def test_a_stranger_is_hardly_ever_right_and_answers_are_the_same(stranger: ModelRunner) -> None:
    requests = [asked(each, 40) for each in range(3)]
    made, drafts = drafted(stranger, requests)
    assert made == plain(stranger, requests)
    assert drafts.accepted < drafts.proposed / 4


def test_samples_of_a_seed_are_the_same(itself: ModelRunner) -> None:
    for first in (0, 3):
        requests = [asked(first + each, 30, replace(WARM, seed=each)) for each in range(3)]
        made, drafts = drafted(itself, requests)
        assert made == plain(itself, requests), first
        assert 0 < drafts.accepted < drafts.proposed, first


def test_draft_tokens_of_many_are_those_of_each_alone(itself: ModelRunner) -> None:
    """Of each its own count, as asked for after their steps."""
    requests = [asked(each, 8) for each in range(4)]
    alone = plain(itself, requests)
    known = [[*each.prompt, *made] for each, made in zip(requests, alone, strict=True)]
    # Slots are taken from the first on, and their pages hold the answers until others take them.
    beginnings = [
        Beginning(slot, len(tokens) - 3, tokens[-3], 1 + slot % 2)
        for slot, tokens in enumerate(known)
    ]
    together = proposed(itself, beginnings)
    assert together.seconds > 0
    assert together.tokens == [proposed(itself, [each]).tokens[0] for each in beginnings]
    assert [each[0] for each in together.tokens] == [tokens[-2] for tokens in known]
    assert [len(each) for each in together.tokens] == [1, 2, 1, 2]


def test_every_size_tells_what_a_draft_token_takes(itself: ModelRunner) -> None:
    assert sorted(itself.ops[Propose]) == [2, 8]
    assert all(seconds > 0 for seconds in itself.ops[Propose].values())
