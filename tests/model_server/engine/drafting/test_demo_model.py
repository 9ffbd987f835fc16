"""The demo model gives the same answers with draft tokens and without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from model_server.config import ModelServerConfig
from model_server.engine.drafting.drafting import Drafting
from model_server.engine.request import EngineRequest
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from sax.types import ModelSpec
from tests.demo_model import COMPILE_CACHE, demo_model
from tests.model_server.engine.drafting.driving import answers, tokens_of

# Compiling the model in float32 for the first time takes a minute or two.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
WARM = Sampling(temperature=0.7, top_k=0, top_p=0.9, seed=5)
PROMPTS = (
    "la la la la la la la",
    "1, 2, 3, 1, 2, 3, 1, 2, 3, 1,",
    "def f(x): return x\ndef g(x): return x\ndef h(x):",
    "The lighthouse keeper and her dog",
)


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    """In float32, so that steps of any size choose alike; pages for two of four slots."""
    spec = ModelSpec(
        model_id="/sax/test/smollm2",
        model_path="llama",
        checkpoint=str(demo_model()),
        replicas=1,
        overrides={"DTYPE": '"float32"'},
    )
    config = ModelServerConfig(
        jax_cache_dir=str(COMPILE_CACHE),
        slots=4,
        page_size=8,
        max_context=48,
        kv_cache_bytes=3 << 20,
    )
    made = make_loader(config)(spec, lambda progress: None)
    assert isinstance(made, Loaded)
    with closing(made.runner):
        yield made


def asked(loaded: Loaded, prompt: str, sampling: Sampling) -> EngineRequest:
    tokens = tuple(loaded.tokenizer.encode(prompt))
    return EngineRequest(prompt=tokens, sampling=sampling, max_tokens=24, stop_ids=frozenset())


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_answers_one_by_one_are_the_same(loaded: Loaded, sampling: Sampling) -> None:
    drafting = Drafting(8, loaded.runner.limits.decodes)
    for prompt in PROMPTS:
        request = asked(loaded, prompt, sampling)
        (plain,) = answers(loaded.runner, [request])
        (drafted,) = answers(loaded.runner, [request], drafting)
        assert tokens_of(drafted) == tokens_of(plain)
        assert [each.logprob for each in drafted] == pytest.approx(
            [each.logprob for each in plain], abs=1e-3
        )
    assert drafting.proposed > drafting.accepted > 0


def test_answers_together_are_the_same_although_some_are_preempted(loaded: Loaded) -> None:
    requests = [asked(loaded, prompt, GREEDY) for prompt in PROMPTS[:3]]
    drafting = Drafting(8, loaded.runner.limits.decodes)
    plain = [tokens_of(each) for each in answers(loaded.runner, requests)]
    drafted = [tokens_of(each) for each in answers(loaded.runner, requests, drafting)]
    assert drafted == plain
    assert drafting.accepted > 0
