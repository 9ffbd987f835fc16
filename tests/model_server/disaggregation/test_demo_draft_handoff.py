"""The demo model as its own draft: after a handoff, draft tokens are as good as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from msgspec.structs import replace as with_changes

from model_server.disaggregation.handed_pages import handed_over
from model_server.engine.drafting.drafting import Drafting
from model_server.engine.drafting.drafts import Drafts
from model_server.engine.running.ops import Propose
from model_server.engine.step_times import StepTimes
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from tests.model_server.engine.drafting.driving import answers, tokens_of
from tests.model_server.engine.running.test_demo_draft import (
    CONFIG,
    GREEDY,
    MOST,
    PROMPTS,
    asked,
    spec,
)

# Compiling both models for the first time takes two or three minutes.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

KEY = 7


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    """A server that fetches pages, from itself."""
    config = replace(CONFIG, prefill=True, prefill_servers=("127.0.0.1:9",))
    made = make_loader(config)(spec(), lambda progress: None)
    assert isinstance(made, Loaded)
    with closing(made.runner):
        yield made


@pytest.mark.parametrize("prompt", PROMPTS[:2])
def test_draft_tokens_after_a_handoff_are_nearly_always_right(loaded: Loaded, prompt: str) -> None:
    request, held, times = asked(loaded, prompt, GREEDY), loaded.disaggregation, loaded.step_times
    assert held is not None
    assert times is not None
    runner = held.runner
    assert runner.ops[Propose]
    (plain,) = answers(runner, [request])
    runner.expect_export(1, KEY)
    ((first,),) = answers(runner, [with_changes(request, max_tokens=1)])
    assert first.token is not None
    size = runner.limits.page_size
    assert held.transfers.reserve(KEY, handed_over(runner.limits, len(request.prompt)))
    held.transfers.fetch(KEY, held.transfers.addresses(), 30.0)
    answers(runner, [with_changes(request, prompt=request.prompt[::-1])])  # in the same pages
    runner.expect_import(1, KEY, first.token)
    drafts = Drafts(runner, size)
    dear = StepTimes(times.buckets, tuple(60.0 for _ in times.buckets), times.block)
    drafting = Drafting(MOST, runner.limits.decodes, dear, drafts)
    here = with_changes(request, answer=(first.token,), computed=True)
    (made,) = answers(runner, [here], drafting)
    assert [first.token, *tokens_of(made)] == tokens_of(plain)
    assert drafts.accepted >= 0.9 * drafts.proposed > 6
