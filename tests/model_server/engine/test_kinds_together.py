"""Beam searches, guided answers and drafted ones in one engine: each is what it is alone."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.limits import EngineLimits
from model_server.engine.request import EngineRequest
from tests.model_server.engine.conftest import Inbox
from tests.model_server.engine.drafting.fake_drafted_runner import FakeDraftedRunner
from tests.model_server.engine.drafting.test_drafting import looping
from tests.model_server.engine.fake_runner import FakeRunner
from tests.model_server.engine.parts import test_grammar as forced
from tests.model_server.engine.parts.test_beam_slots import beams_for, found_alone
from tests.model_server.engine.test_scheduler import ask_for
from tests.model_server.engine.trace import alone
from tests.model_server.examples import examples

_LOOPING, _PROMPT = looping()
LIMITS = replace(_LOOPING, draft_tokens=6, max_logit_rows=12, token_budget=24, prefill_block=4)
Check = Callable[[Inbox, int], None]


def guided(size: int, limits: EngineLimits) -> tuple[EngineRequest, Check]:
    request = forced.asked(size, forced.Forcing(30, every=2, run=6))

    def check(inbox: Inbox, id: int) -> None:
        assert inbox.tokens(id) == forced.alone(request, limits.windows.every)

    return request, check


def searched(size: int, limits: EngineLimits) -> tuple[EngineRequest, Check]:
    request = beams_for(tuple(range(size)))

    def check(inbox: Inbox, id: int) -> None:
        assert list(inbox.hypotheses[id]) == found_alone(request, limits)

    return request, check


def drafted(size: int, limits: EngineLimits) -> tuple[EngineRequest, Check]:
    request = ask_for(_PROMPT, 10 + size)

    def check(inbox: Inbox, id: int) -> None:
        assert inbox.tokens(id) == alone(request, limits)[0]

    return request, check


@examples(
    kinds=st.lists(
        st.tuples(st.sampled_from([guided, searched, drafted]), st.integers(1, 14)),
        min_size=2,
        max_size=8,
    ),
    pages=st.integers(75, 100),
    cache=st.sampled_from(["off", "tenant"]),
    runner=st.sampled_from([FakeRunner, FakeDraftedRunner]),
    few=20,
    many=60,
)
def test_each_answer_is_the_one_that_it_gets_alone(
    kinds: list[tuple[Callable[[int, EngineLimits], tuple[EngineRequest, Check]], int]],
    pages: int,
    cache: PrefixSharing,
    runner: type[FakeRunner],
) -> None:
    limits = replace(LIMITS, pages=pages, prefix_cache=cache)
    asked = [kind(size, limits) for kind, size in kinds]
    inbox, ids, stats = forced.served(limits, [request for request, _ in asked], runner)
    for id, (_, check) in zip(ids, asked, strict=True):
        check(inbox, id)
    assert stats.pages_used == 0
    assert stats.draft_tokens >= stats.draft_tokens_accepted


def test_draft_tokens_come_true_beside_an_answer_with_forced_tokens() -> None:
    asked = [drafted(14, LIMITS), guided(5, LIMITS)]
    inbox, ids, stats = forced.served(LIMITS, [request for request, _ in asked])
    for id, (_, check) in zip(ids, asked, strict=True):
        check(inbox, id)
    assert stats.draft_tokens_accepted > 0
