"""Several decode steps in one launch: fewer launches, the same answers."""

from __future__ import annotations

import threading

from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.engine.engine import Engine, EngineRequest
from model_server.engine.hooks import SequenceHooks
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.registry import new_sequence
from model_server.engine.sequence import Sequence
from model_server.engine.series import StepSeries
from model_server.engine.types import Row, Sampling, Step
from tests.model_server.engine.conftest import Inbox, Start
from tests.model_server.engine.fake_runner import GREEDY, FakeRunner
from tests.model_server.engine.trace import alone
from tests.model_server.examples import examples

LIMITS = EngineLimits(
    slots=4,
    pages=24,
    page_size=4,
    max_context=64,
    token_budget=16,
    max_logit_rows=8,
    prefill_block=2,
    queue=16,
    steps_per_launch=4,
)


def ask_for(
    size: int, max_tokens: int, stop: int | None = None, account: str = ""
) -> EngineRequest:
    return EngineRequest(
        prompt=tuple(range(size)),
        sampling=GREEDY if size % 2 else Sampling(1.0, 0, 1.0, seed=size),
        max_tokens=max_tokens,
        stop_ids=frozenset(() if stop is None else {stop}),
        account=account,
    )


def test_a_lone_stream_takes_one_launch_for_several_steps(start: Start) -> None:
    runner = FakeRunner(LIMITS)
    engine, inbox = start(runner)
    asked = ask_for(3, 41)
    id = engine.submit(asked)
    assert inbox.end(id) == "length"
    assert inbox.tokens(id) == alone(asked, LIMITS)[0]
    assert runner.launched == 41
    assert runner.series >= 9  # the prompt's step, and one before its token was known, are alone


@examples(
    asked=st.lists(
        st.builds(
            ask_for,
            st.integers(1, 20),
            st.integers(1, 40),
            st.none() | st.integers(0, 96),
            st.sampled_from(("a", "b", "c")),
        ),
        min_size=1,
        max_size=7,
    ),
    steps=st.integers(2, 6),
    pages=st.integers(16, 30),
    window=st.none() | st.integers(3, 12),
    few=30,
    many=60,
)
def test_answers_are_those_of_single_steps(
    asked: list[EngineRequest], steps: int, pages: int, window: int | None
) -> None:
    limits = replace(
        LIMITS, steps_per_launch=steps, pages=pages, windows=WindowLimits(every=window)
    )
    inbox = Inbox()
    engine = Engine(FakeRunner(limits), inbox.deliver)
    try:
        ids = [engine.submit(each) for each in asked]
        for id, each in zip(ids, asked, strict=True):
            tokens, end = alone(each, limits)
            assert inbox.end(id) == end
            assert inbox.tokens(id) == tokens
        assert engine.stats().pages_used == 0
    finally:
        engine.close()


def test_who_arrives_during_a_series_is_in_the_next_launch(start: Start) -> None:
    runner = FakeRunner(LIMITS, gate=threading.Semaphore(0))
    engine, inbox = start(runner)
    assert runner.gate
    first = engine.submit(ask_for(3, 50))
    runner.gate.release(2)  # the prompt's step, and the next one
    runner.wait_launched(2 + 4)
    before = runner.launched
    second = engine.submit(ask_for(5, 1))
    runner.gate.release(4 * 2)  # what is in flight
    inbox.wait(lambda: bool(inbox.tokens(first)))
    runner.gate.release(1000)
    assert inbox.end(second) == "length"
    assert inbox.tokens(second) == alone(ask_for(5, 1), LIMITS)[0]
    assert runner.launched >= before + 1


def test_a_cancel_during_a_series_frees_slot_and_pages(start: Start) -> None:
    runner = FakeRunner(LIMITS, gate=threading.Semaphore(0))
    engine, inbox = start(runner)
    assert runner.gate
    id = engine.submit(ask_for(3, 50))
    runner.gate.release(2)
    runner.wait_launched(2 + 4)
    engine.cancel(id)
    runner.gate.release(1000)
    assert inbox.end(id) == "cancelled"
    assert (engine.stats().slots_used, engine.stats().pages_used) == (0, 0)


# When a step begins a series


def running(launched: int = 8, end: int = 60, pages: int = 3) -> Sequence:
    """A sequence that decodes, with pages of 4 tokens."""
    asked = replace(ask_for(launched, end - launched), sampling=GREEDY)
    made = new_sequence(1, asked, LIMITS)
    made.launched = made.goal = launched
    made.slot, made.pages = 0, list(range(1, pages + 1))
    return made


class _Changing(SequenceHooks[Sequence]):
    def __init__(self, at: int) -> None:
        self._at = at

    def limit(self, sequence: Sequence, end: int) -> int:
        return min(end, self._at)


class _Stepwise(SequenceHooks[Sequence]):
    def is_stepwise(self, sequence: Sequence) -> bool:
        return True


def decode(*sequences: Sequence) -> Step:
    rows = tuple(Row(each.id, each.slot, each.launched - 1, (), True) for each in sequences)
    return Step(7, rows)


def test_a_series_begins_where_all_its_positions_have_pages_or_find_free_ones() -> None:
    series = StepSeries(LIMITS)
    one = running(launched=10, pages=3)  # 2 positions are left there, and 3 are needed
    assert series.begins_with(decode(one), [one], pages=1)
    assert not series.begins_with(decode(one), [one], pages=0)


def test_a_series_ends_with_its_sequences_at_the_latest() -> None:
    series = StepSeries(LIMITS)
    for left, begins in ((2, False), (3, True)):
        one = running()
        one.launched = one.end - left
        assert series.begins_with(decode(one), [one], pages=20) is begins


def test_a_series_stops_short_of_a_rotation_that_changes() -> None:
    series, one = StepSeries(LIMITS), running()
    for room, begins in ((2, False), (3, True)):
        one.parts = (_Changing(one.launched + room),)
        assert series.begins_with(decode(one), [one], pages=20) is begins


def test_no_series_begins_where_a_step_needs_what_the_one_before_gave() -> None:
    for why in ("guided", "prompt", "stepwise", "group", "late", "slow"):
        series, one, other = StepSeries(LIMITS), running(), running()
        step, runs = decode(one), [one]
        assert series.begins_with(step, runs, pages=20)
        if why == "guided":
            step = replace(step, guided=True)
        if why == "prompt":
            step = replace(step, rows=(Row(1, 0, 0, (1, 2), True),))
        one.group = [one] if why == "group" else None
        one.parts = (_Stepwise(),) if why == "stepwise" else ()
        if why == "late":
            runs.append(other)  # without a row in the step: its mask is not there
        if why == "slow":
            series.took(step, 1.0)
        assert not series.begins_with(step, runs, pages=20), why


def test_a_step_of_a_prompt_does_not_count_as_slow() -> None:
    series, one = StepSeries(LIMITS), running()
    series.took(Step(1, (Row(1, 0, 0, (1, 2), True),)), 5.0)
    assert series.begins_with(decode(one), [one], pages=20)
