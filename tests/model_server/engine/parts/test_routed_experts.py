"""Each token's experts are told once, whatever was computed twice or for nothing."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from msgspec.structs import replace

from model_server.engine.engine import EngineRequest
from model_server.engine.parts.routed_experts import ShowRoutes, ToldRoutes
from model_server.engine.registry import new_sequence
from model_server.engine.request import RouteRows
from model_server.engine.types import BeamSettings
from sax.errors import InvalidRequest, UnsupportedParameter
from tests.model_server.engine.fake_runner import GREEDY, FakeRunner, experts_of
from tests.model_server.engine.parts.test_grammar import LIMITS, Forcing
from tests.model_server.recorded_answers import RouteRecorder

SHOWING = replace(LIMITS, routed_experts=True)


def asked(prompt: tuple[int, ...], count: int, **fields: object) -> EngineRequest:
    made = EngineRequest(prompt=prompt, sampling=GREEDY, max_tokens=count, stop_ids=frozenset())
    return replace(made, **fields)


def test_all_tokens_but_the_last_are_told_once_in_any_company() -> None:
    """From the cache, preempted, and with tokens that a grammar forces."""
    limits = replace(SHOWING, pages=9, slots=3, prefix_cache="shared")
    guided = replace(GREEDY, guided=True)
    wanted = [
        asked((5, 8, 13, 21, 34, *range(n)), 7 + n, grammar=Forcing(7 + n) if n % 2 else None)
        for n in range(6)
    ]
    wanted = [replace(e, sampling=guided) if e.grammar else e for e in wanted]
    runner = FakeRunner(limits)
    with closing(RouteRecorder(runner)) as recorder:
        answers = recorder.answers(wanted)  # their pages are cached now
        for at_once in (1, 6):
            routed = recorder.routed(wanted, at_once)
            for each, answer, found in zip(wanted, answers, routed, strict=True):
                tokens = (*each.prompt, *answer.tokens)[:-1]
                np.testing.assert_array_equal(found, experts_of(tokens, 0))
        stats = recorder.engine.stats()
    assert stats.preemptions


def test_another_engine_that_goes_on_tells_of_all_tokens_again() -> None:
    routes = ToldRoutes()
    routes.add([RouteRows(0, experts_of((3, 4), 0)), RouteRows(2, experts_of((5,), 2))])
    routes.add([RouteRows(0, experts_of((3, 4, 5, 6), 0))])
    np.testing.assert_array_equal(routes.first(4), experts_of((3, 4, 5, 6), 0))
    assert len(routes.first(3)) == 3
    with pytest.raises(AssertionError, match="the experts of 4 of 5 tokens are known"):
        routes.first(5)


def test_who_cannot_have_them_is_refused_by_name() -> None:
    wanted = asked((5, 8), 3, settings=(ShowRoutes(),))
    with pytest.raises(InvalidRequest, match="publish it with RETURN_ROUTED_EXPERTS true") as seen:
        new_sequence(1, wanted, LIMITS)
    assert seen.value.param == "return_routed_experts"
    with pytest.raises(UnsupportedParameter, match="a beam search has no return_routed_experts"):
        new_sequence(1, replace(wanted, beams=BeamSettings(2, 1.0)), SHOWING)
    assert new_sequence(1, wanted, SHOWING)
