"""Prompts computed on islands of their own: the answers are the same, whatever is lost or late."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.disaggregation.disaggregation import worthwhile
from model_server.disaggregation.island_moves import IslandMoves
from model_server.engine.engine import EngineRequest
from model_server.engine.failure import DevicesLost
from model_server.engine.islands.split_group import SplitGroup
from model_server.engine.types import BeamSettings
from tests.model_server.engine.conftest import Inbox
from tests.model_server.engine.fake_runner import FakeRunner
from tests.model_server.engine.islands.test_engine_group import check, submitted
from tests.model_server.engine.test_engine import LIMITS, ask_for
from tests.model_server.engine.trace import scores_alone
from tests.model_server.examples import examples
from tests.model_server.waiting import wait_until

LEAST = worthwhile(LIMITS)
PROMPTS = ("p", "q")


class Islands:
    """Prompt islands p and q, and islands a and b for the answers."""

    def __init__(self, copied: Any, fails: dict[str, int]) -> None:
        """fails: at the results of which step an island loses its devices."""
        self.inbox = Inbox()
        self.moves = IslandMoves(PROMPTS, LIMITS, copied)
        self.group = SplitGroup(self.inbox.deliver, LIMITS, PROMPTS, self.moves)
        self.runners: dict[str, FakeRunner] = {}
        self.fails = fails

    def add(self, *names: str) -> None:
        for name in names:
            port = self.moves.port(name, ())
            fails = self.fails.pop(name, None)
            runner = FakeRunner(LIMITS, traffic=port, fail_result=fails, failure=DevicesLost)  # type: ignore[arg-type]
            self.runners[name] = runner
            self.group.add(name, self.moves.attach(name, runner))

    @property
    def imported(self) -> int:
        return sum(len(runner.imported) for runner in self.runners.values())


def at_once(blocks: Any, sets: Any, count: Any) -> Sequence[Any]:
    return blocks


@contextmanager
def islands(*names: str, copied: Any = at_once, **fails: int) -> Iterator[Islands]:
    """All must give everything back."""
    threads = set(threading.enumerate())
    made = Islands(copied, fails)
    made.add(*names)
    yield made
    made.group.close()
    stats = made.group.stats()
    assert (stats.running, stats.waiting, stats.slots_used, stats.pages_used) == (0, 0, 0, 0)
    wait_until(lambda: made.moves.used == 0)
    made.moves.close()
    assert not set(threading.enumerate()) - threads


def long_asks(count: int, max_tokens: int = 12) -> list[EngineRequest]:
    return [ask_for(size, max_tokens) for size in range(LEAST, LEAST + count)]


def test_long_prompts_are_computed_on_their_islands_and_go_on_elsewhere() -> None:
    with islands("p", "a", "b") as made:
        requests = long_asks(5)
        check(made.inbox, submitted(made.group, requests))
        assert made.imported == 5
        assert made.runners["p"].launched
        stats = made.group.stats()
        assert (stats.finished, stats.tokens) == (5, sum(map(len, _tokens(made, requests))))
        assert not made.runners["p"].imported


def _tokens(made: Islands, requests: Sequence[EngineRequest]) -> list[list[int]]:
    return [made.inbox.tokens(id) for id in range(1, len(requests) + 1)]


def test_short_prompts_scores_and_beams_stay_with_the_others() -> None:
    with islands("p", "a") as made:
        scored = ask_for(LEAST + 3, score_from=1)
        ask, beams = ask_for(LEAST - 1), BeamSettings(2, 0.8)
        searched = replace(ask_for(LEAST + 1, 4), beams=beams)
        ids = [made.group.submit(each) for each in (ask, scored, searched)]
        ends = [made.inbox.end(id) for id in ids]
        assert ends[1] == "score"
        assert made.inbox.results[ids[1]][-1].target_logprobs == scores_alone(scored)
        assert not made.runners["p"].launched


def test_an_answer_that_ends_with_its_first_token_is_not_moved() -> None:
    with islands("p", "a") as made:
        check(made.inbox, submitted(made.group, long_asks(3, max_tokens=1)))
        assert not made.imported
        assert not made.runners["a"].launched


@examples(st.data(), few=20, many=80)
def test_answers_are_the_same_whichever_islands_are_lost(data: st.DataObject) -> None:
    fails = data.draw(st.dictionaries(st.sampled_from("pqa"), st.integers(1, 20), max_size=3))
    broken = data.draw(st.sets(st.integers(0, 6)))  # moves that fail
    sizes = data.draw(st.lists(st.integers(3, LEAST + 20), min_size=1, max_size=10))
    moves = iter(range(1000))

    def copied(blocks: Sequence[Any], pool: Any, pages: int) -> Sequence[Any]:
        if next(moves) in broken:
            raise RuntimeError("an island was lost on the way")
        return blocks

    with islands("p", "q", "a", "b", copied=copied, **fails) as made:
        check(made.inbox, submitted(made.group, [ask_for(size, 12) for size in sizes]))
        assert made.group.failed is None


def test_prompt_islands_answer_while_no_other_is_there() -> None:
    with islands("p", "a", a=3) as made:
        asked = submitted(made.group, long_asks(4))
        check(made.inbox, asked)
        wait_until(lambda: made.group.islands == ("p",))
        check(made.inbox, submitted(made.group, long_asks(2)))
        made.add("a")
        before = made.imported
        check(made.inbox, submitted(made.group, long_asks(2)))
        assert made.imported == before + 2


@pytest.mark.parametrize("how", ["cancel", "close", "lose"])
def test_whatever_happens_while_pages_are_on_their_way(how: str) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def copied(blocks: Sequence[Any], pool: Any, pages: int) -> Sequence[Any]:
        begun.set()
        assert goes_on.wait(60)
        return blocks

    with islands("p", "a", copied=copied) as made:
        request = ask_for(LEAST + 2, 12)
        id = made.group.submit(request)
        assert begun.wait(60)
        if how == "cancel":
            made.group.cancel(id)
            assert made.inbox.end(id) == "cancelled"
        elif how == "lose":
            made.group.lose(DevicesLost("gone"), "a")
            wait_until(lambda: made.group.islands == ("p",))
        else:
            closing = threading.Thread(target=made.group.close)
            closing.start()
            assert made.inbox.end(id) == "cancelled"
            closing.join()
        goes_on.set()
        if how == "lose":
            check(made.inbox, {id: request})
    assert not made.imported


def test_places_reserved_for_long_prompts_are_given_back() -> None:
    with islands("p", "a") as made:
        request = ask_for(LEAST + 2)
        made.group.reserve(request)
        id = made.group.submit(request, reserved=True)
        check(made.inbox, {id: request})
        assert made.group.drain(60)


def test_prompts_beyond_the_room_on_the_way_are_computed_where_they_are_answered() -> None:
    goes_on = threading.Event()

    def copied(blocks: Sequence[Any], pool: Any, pages: int) -> Sequence[Any]:
        assert goes_on.wait(60)
        return blocks

    with islands("p", "a", copied=copied) as made:
        requests = [ask_for(40, 8) for _ in range(12)]
        asked = submitted(made.group, requests)
        wait_until(lambda: made.runners["a"].launched > 0)
        goes_on.set()
        check(made.inbox, asked)
        assert 0 < made.imported < len(requests)
