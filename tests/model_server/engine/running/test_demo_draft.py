"""The demo model in float32, and as its own draft model with the file's 4-bit weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from model_server.config import ModelServerConfig
from model_server.engine.drafting.drafting import Drafting
from model_server.engine.drafting.drafts import Drafts
from model_server.engine.request import EngineRequest
from model_server.engine.running.ops import Propose
from model_server.engine.step_times import StepTimes
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from sax.types import ModelSpec
from tests.demo_model import COMPILE_CACHE, demo_model
from tests.model_server.engine.drafting.driving import answers, tokens_of

# Compiling both models for the first time takes two or three minutes.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
WARM = Sampling(temperature=0.7, top_k=0, top_p=0.9, seed=5)
PROMPTS = (
    "The lighthouse keeper and her dog",
    "Water boils at a lower temperature on a mountain because",
    "def f(x): return x\ndef g(x): return x\ndef h(x):",
)
MOST, COUNT = 4, 14
# Pages for two of four slots.
CONFIG = ModelServerConfig(
    jax_cache_dir=str(COMPILE_CACHE), slots=4, page_size=8, max_context=48, kv_cache_bytes=6 << 20
)


def spec() -> ModelSpec:
    return ModelSpec(
        model_id="/sax/test/smollm2",
        model_path="llama",
        checkpoint=str(demo_model()),
        replicas=1,
        overrides={
            "DTYPE": '"float32"',
            "SPECULATION": '"draft"',
            "MAX_GUESSES": str(MOST),
            "DRAFT_MODEL": f'"{demo_model()}"',
            "DRAFT_QUANTIZE": '"stored"',
        },
    )


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    made = make_loader(CONFIG)(spec(), lambda progress: None)
    assert isinstance(made, Loaded)
    with closing(made.runner):
        yield made


def asked(loaded: Loaded, prompt: str, sampling: Sampling) -> EngineRequest:
    tokens = tuple(loaded.tokenizer.encode(prompt))
    return EngineRequest(prompt=tokens, sampling=sampling, max_tokens=COUNT, stop_ids=frozenset())


def drafted(loaded: Loaded, requests: list[EngineRequest]) -> tuple[list[list[int]], Drafts]:
    """The tokens of each request, where any step takes a minute: draft tokens always pay."""
    runner, times = loaded.runner, loaded.step_times
    assert runner.ops[Propose]
    assert times is not None
    drafts = Drafts(runner, runner.limits.page_size)
    dear = StepTimes(times.buckets, tuple(60.0 for _ in times.buckets), times.block)
    made = answers(runner, requests, Drafting(MOST, runner.limits.decodes, dear, drafts))
    return [tokens_of(each) for each in made], drafts


@pytest.mark.parametrize("prompt", PROMPTS[:2])
def test_a_draft_model_of_4_bits_is_nearly_always_right(loaded: Loaded, prompt: str) -> None:
    request = asked(loaded, prompt, GREEDY)
    (plain,) = answers(loaded.runner, [request])
    (made,), drafts = drafted(loaded, [request])
    assert made == tokens_of(plain)
    assert drafts.accepted >= 0.9 * drafts.proposed > 6


def test_samples_are_the_same(loaded: Loaded) -> None:
    request = asked(loaded, PROMPTS[0], WARM)
    (plain,) = answers(loaded.runner, [request])
    (made,), drafts = drafted(loaded, [request])
    assert made == tokens_of(plain)
    assert drafts.proposed > 0


def test_answers_together_are_the_same_although_some_are_preempted(loaded: Loaded) -> None:
    requests = [asked(loaded, prompt, GREEDY) for prompt in PROMPTS]
    plain = [tokens_of(each) for each in answers(loaded.runner, requests)]
    made, drafts = drafted(loaded, requests)
    assert made == plain
    assert drafts.accepted > 0
