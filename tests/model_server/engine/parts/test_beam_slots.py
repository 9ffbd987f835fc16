"""Beam searches among other sequences: each finds what it would find alone, on any pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.parts.beams import sampling_of
from model_server.engine.registry import context_of as most_tokens
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest
from model_server.engine.scheduler import Scheduler
from model_server.engine.types import BeamSettings, Hypothesis, RowResult, StepResult
from sax.errors import InvalidRequest, PromptTooLong
from tests.model_server.engine.conftest import Start
from tests.model_server.engine.fake_runner import GREEDY, VOCAB, FakeRunner, hash_of
from tests.model_server.engine.parts.beam_reference import search
from tests.model_server.engine.test_scheduler import limits_of
from tests.model_server.engine.trace import Ask, Trace, alone, run
from tests.model_server.examples import examples

ENDS = frozenset({7, 60})


def beams_for(
    prompt: tuple[int, ...],
    max_tokens: int = 6,
    beams: BeamSettings = BeamSettings(3, 0.8),  # noqa: B008
    account: str = "",
) -> EngineRequest:
    return EngineRequest(
        prompt=prompt,
        sampling=sampling_of(beams, ENDS),
        max_tokens=max_tokens,
        stop_ids=ENDS,
        beams=beams,
        account=account,
    )


def plain(prompt: tuple[int, ...], max_tokens: int, account: str = "") -> EngineRequest:
    return EngineRequest(
        prompt=prompt, sampling=GREEDY, max_tokens=max_tokens, stop_ids=ENDS, account=account
    )


def found_alone(asked: EngineRequest, limits: EngineLimits) -> list[Hypothesis]:
    """The reference: the same search by the fake runner's arithmetic, without pages or steps."""

    def logprobs(tokens: tuple[int, ...]) -> np.ndarray:
        seen = (*asked.prompt, *tokens)
        value = hash_of(seen[-limits.windows.every :] if limits.windows.every else seen)
        return -((value + np.arange(VOCAB)) % VOCAB) / VOCAB

    assert asked.beams is not None
    room = most_tokens(asked, limits) - len(asked.prompt)
    return search(logprobs, asked.beams, ENDS, min(asked.max_tokens, room))


def accepted(asked: EngineRequest, limits: EngineLimits) -> bool:
    try:
        new_sequence(1, asked, limits)
    except (InvalidRequest, PromptTooLong):
        return False
    return True


@st.composite
def some_limits(draw: st.DrawFn) -> EngineLimits:
    slots, block = draw(st.integers(1, 6)), draw(st.sampled_from([1, 2, 4]))
    short = draw(st.none() | st.integers(2, 14))
    limits = limits_of(
        slots=slots,
        pages=draw(st.integers(6, 30)),
        page_size=draw(st.sampled_from([1, 2, 3, 4])),
        max_context=draw(st.integers(6, 30)),
        token_budget=slots - 1 + block + draw(st.integers(0, 8)),
        max_logit_rows=slots + draw(st.integers(0, 4)),
        prefill_block=block,
        short_context=short,
        prefix_cache=draw(st.sampled_from(["off", "tenant"])),
    )
    window = draw(st.none() | st.integers(2, 8)) if short is None else None
    return replace(limits, windows=WindowLimits(every=window))


@st.composite
def some_asks(draw: st.DrawFn, limits: EngineLimits) -> list[Ask]:
    asks: list[Ask] = []
    for _ in range(draw(st.integers(1, 6))):
        # Few tokens, so that prompts begin alike.
        prompt = tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=12)))
        account, most = draw(st.sampled_from(["", "other"])), draw(st.integers(1, 10))
        asked = plain(prompt, most, account)
        if draw(st.booleans()):
            size, early = draw(st.integers(1, 4)), draw(st.booleans())
            offers = draw(st.sampled_from([0, 0, 1, 2, 6]))
            beams = BeamSettings(size, 0.8, early, draw(st.integers(0, 3)), offers)
            asked = beams_for(prompt, most, beams, account)
        if accepted(asked, limits):
            turn = draw(st.integers(0, 12))
            gone = draw(st.none() | st.none() | st.integers(turn, turn + 20))
            asks.append(Ask(asked, turn, gone))
    return asks


@examples(st.data(), few=40, many=200)
def test_every_search_finds_what_it_would_find_alone(data: st.DataObject) -> None:
    limits = data.draw(some_limits())
    asks = data.draw(some_asks(limits))
    trace = run(limits, asks)
    for place, ask in enumerate(asks, 1):
        answer = trace.answers[place]
        if answer.finish == "cancelled":
            continue
        if ask.engine_request.beams is None:
            assert (answer.tokens, answer.finish) == alone(ask.engine_request, limits)
        else:
            assert answer.finish == "stop"
            check(answer.hypotheses, found_alone(ask.engine_request, limits))


def check(found: tuple[Hypothesis, ...], wanted: list[Hypothesis]) -> None:
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    assert [each.score for each in found] == pytest.approx([each.score for each in wanted])


def test_a_search_takes_a_slot_for_each_beam_and_gives_them_back_at_once() -> None:
    limits = limits_of(slots=4)
    trace = Trace(limits)
    trace.add(1, beams_for((5, 8), 8, BeamSettings(3, 1.0, min_tokens=6)))
    trace.turn()
    assert trace.scheduler.load().slots_used == 3
    trace.add(4, plain((5, 8, 9), 3))
    trace.add(5, plain((5, 9, 9), 3))
    while not trace.answers[1].finish:
        assert trace.scheduler.load().slots_used in (3, 4)
        trace.turn()
    trace.finish()


def test_hypotheses_share_the_full_pages_of_their_prompt() -> None:
    limits = limits_of(slots=4, pages=64, page_size=2, max_context=64)
    trace = Trace(limits)
    asked = beams_for(tuple(range(41)), 6, BeamSettings(4, 1.0, min_tokens=4))
    trace.add(1, asked)
    most = 0
    while trace.scheduler.load().live:
        trace.turn()
        most = max(most, trace.scheduler.load().pages_used)
    trace.finish()
    assert 20 < most <= 20 + 4 * 4, "20 pages of the prompt once, and a few for each beam"
    check(trace.answers[1].hypotheses, found_alone(asked, limits))


@pytest.mark.parametrize("prefix_cache", ["off", "tenant"])
@pytest.mark.parametrize("window", [None, 3])
def test_a_preempted_search_goes_on_where_it_was(prefix_cache: str, window: int | None) -> None:
    """The pages of two searches do not fit once their answers are long."""
    limits = limits_of(slots=6, pages=17, page_size=2, max_context=40, prefix_cache=prefix_cache)
    limits = replace(limits, windows=WindowLimits(every=window))
    asks = [
        Ask(beams_for((1, 2, 3, 4 + n), 12, BeamSettings(3, 0.6, min_tokens=9)), turn=n)
        for n in range(2)
    ]
    assert all(accepted(ask.engine_request, limits) for ask in asks)
    trace = run(limits, asks)
    assert trace.scheduler.preemptions or window
    for place, ask in enumerate(asks, 1):
        check(trace.answers[place].hypotheses, found_alone(ask.engine_request, limits))
    # It did not begin from its prompt again: all its tokens were computed anew in one go.
    assert len(trace.steps) < 100


def test_a_newcomer_of_another_account_displaces_a_whole_search() -> None:
    limits = limits_of(slots=3)
    trace = Trace(limits)
    first = beams_for((1, 2), 30, BeamSettings(3, 0.0, min_tokens=25), "one")
    trace.add(1, first)
    for _ in range(6):
        trace.turn()
    trace.add(4, plain((3,), 2, "two"))
    while not trace.answers[4].finish:
        trace.turn()
    assert not trace.answers[1].finish
    assert trace.scheduler.preemptions == 1
    trace.finish()
    check(trace.answers[1].hypotheses, found_alone(first, limits))


def test_a_cancelled_search_gives_back_every_slot_and_page_at_any_time() -> None:
    for turn in range(14):
        trace = Trace(limits_of(slots=4))
        trace.add(1, beams_for((1, 2, 3, 4, 5), 9, BeamSettings(4, 0.0, min_tokens=8)))
        for _ in range(turn):
            trace.turn()
        trace.cancel(1)
        trace.finish()


def test_more_beams_than_slots_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="beam_size is 3.*at most 2 beams"):
        new_sequence(1, beams_for((1, 2)), limits_of(slots=2))
    few = replace(limits_of(slots=8), max_running_per_account=2)
    with pytest.raises(InvalidRequest, match="beam_size is 3"):
        new_sequence(1, beams_for((1, 2)), few)


def test_a_search_without_room_to_end_is_refused_by_name() -> None:
    beams = BeamSettings(2, 1.0, min_tokens=6)
    with pytest.raises(InvalidRequest, match="min_tokens is 6.*room for 6"):
        new_sequence(1, beams_for((1, 2), 6, beams), limits_of())
    with pytest.raises(PromptTooLong):
        new_sequence(1, beams_for((1,) * 20, 6, BeamSettings(4, 1.0)), limits_of(pages=7))


def test_a_model_that_never_ends_an_answer_is_an_error_and_not_a_search_without_end() -> None:
    asked = beams_for((1, 2), 2, BeamSettings(2, 1.0))
    scheduler = Scheduler(limits_of())
    scheduler.add(new_sequence(1, asked, scheduler.limits))
    runner = FakeRunner(scheduler.limits)
    updates = []
    while scheduler.load().live:
        step = scheduler.schedule()
        assert step is not None
        (result,) = runner.launch(step).result()
        never = tuple(replace(row, logprob=float("-inf")) for row in result.rows)
        updates += scheduler.commit(step, replace(result, rows=never))
    assert [update.error.param for update in updates] == ["beam_size"]


def test_a_search_that_loses_its_slots_may_end_with_what_was_in_flight() -> None:
    """The only hypothesis has lost its slots, and its likeliest token ends it: none is left."""
    scheduler = Scheduler(limits_of(slots=2))
    asked = beams_for((1, 2), 20, BeamSettings(2, 1.0, tokens_per_beam=1), "one")
    scheduler.add(new_sequence(1, asked, scheduler.limits))
    scheduler.add(new_sequence(3, plain((3,), 2, "two"), scheduler.limits))
    goes_on, ends = RowResult(7, -9.0, ((5, -0.1),)), RowResult(7, -0.1, ((7, -0.1),))
    step = scheduler.schedule()
    while step and (following := scheduler.schedule()) is None:
        scheduler.commit(step, StepResult(step.number, (goes_on,)))
        step = scheduler.schedule()
    assert step
    assert following
    assert scheduler.preemptions == 1
    (update,) = scheduler.commit(step, StepResult(step.number, (ends,)))
    assert [each.tokens for each in update.hypotheses] == [(7,)]


def test_an_engine_delivers_one_update_with_all_answers(start: Start) -> None:
    runner = FakeRunner(limits_of())
    engine, inbox = start(runner)
    asked = beams_for((1, 2, 3))
    search = engine.submit(asked)
    after = engine.submit(plain((4, 5), 3))
    assert after == search + 3, "each hypothesis has an id of its own"
    assert inbox.end(search) == "stop"
    assert inbox.tokens(search) == []
    assert inbox.end(after)
    check(inbox.hypotheses[search], found_alone(asked, runner.limits))
