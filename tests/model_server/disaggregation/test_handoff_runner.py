"""Prompts computed elsewhere and for others: the answers are the same, and nothing is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.disaggregation.handoff_runner import HandoffRunner
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.registry import finish_of
from model_server.engine.request import EngineRequest
from model_server.engine.types import PageGrant, Row, Sampling, Step
from tests.model_server.engine.fake_runner import FakeRunner, next_token
from tests.model_server.engine.fake_traffic import FakeTraffic, MovedRows
from tests.model_server.engine.paging.test_prefix_cache import alike_asks
from tests.model_server.engine.paging.test_states import recurrent
from tests.model_server.engine.test_scheduler import ask_for, limits_of, some_asks, some_limits
from tests.model_server.engine.trace import Ask, Trace, alone, pages_of, run
from tests.model_server.examples import examples


def computed_elsewhere(engine_request: EngineRequest, *, pages: bool = True) -> EngineRequest:
    """The same request once another server has computed its prompt and first token."""
    token = next_token(engine_request.prompt, engine_request.sampling)
    return replace(engine_request, answer=(token,), computed=pages)


def goes_on(engine_request: EngineRequest, limits: EngineLimits) -> bool:
    """Whether there is anything left to do after the first token."""
    if engine_request.score_from is not None:
        return False
    return finish_of(computed_elsewhere(engine_request), limits) is None


@st.composite
def limits_of_any_cache(draw: st.DrawFn) -> EngineLimits:
    """Of layers that see all, beside some with a window or a state or without any such."""
    limits = draw(some_limits())
    match draw(st.sampled_from(["all", "windows", "states"])):
        case "windows":
            return replace(limits, windows=WindowLimits(sliding=draw(st.integers(1, 12))))
        case "states":
            return recurrent(limits)
        case _:
            return limits


@examples(st.data(), few=40, many=250)
def test_answers_are_the_same_wherever_prompts_are_computed(data: st.DataObject) -> None:
    """Some with pages, some with their first token alone, among others that do all of it here."""
    limits = data.draw(limits_of_any_cache())
    asks = data.draw(some_asks(limits) | alike_asks(limits))
    moved = []
    for ask in asks:
        if goes_on(ask.engine_request, limits) and (how := data.draw(st.integers(0, 2))):
            # One that fills the short context is never asked for: its next token turns all anew.
            fills = len(ask.engine_request.prompt) == limits.short_context
            pages = how == 2 and not fills
            engine_request = computed_elsewhere(ask.engine_request, pages=pages)
            ask = Ask(engine_request, ask.turn, ask.cancel_at)
        moved.append(ask)
    trace = run(limits, moved)
    for answer, ask in zip(trace.answers.values(), moved, strict=True):
        if ask.engine_request.max_tokens:
            tokens, finish = alone(ask.engine_request, limits)
            given = [*ask.engine_request.answer, *answer.tokens]
            assert given == tokens[: len(given)]
            assert answer.finish == "cancelled" or (given, answer.finish) == (tokens, finish)
    assert trace.scheduler.load().finished + trace.scheduler.cancelled == len(asks)
    assert trace.traffic.here == {}, "every fetched prompt was taken in or dropped"


@examples(st.data(), few=40, many=150)
def test_what_is_offered_is_the_prompt_and_what_was_cancelled_is_dropped(
    data: st.DataObject,
) -> None:
    limits = data.draw(limits_of_any_cache())
    asks = [
        Ask(replace(ask.engine_request, max_tokens=1), ask.turn, ask.cancel_at, export_key=number)
        if ask.engine_request.score_from is None
        else ask
        for number, ask in enumerate(data.draw(some_asks(limits)))
    ]
    trace = run(limits, asks)
    for answer, ask in zip(trace.answers.values(), asks, strict=True):
        key = ask.export_key
        if key is None:
            continue
        if answer.finish == "cancelled":  # before its pages were offered: nothing is left
            trace.traffic.drop(key)  # or after: as a prefiller does
            assert key not in trace.traffic.network
        else:
            check_offered(trace.traffic.network[key], ask.engine_request, limits)


def check_offered(moved: MovedRows, asked: EngineRequest, limits: EngineLimits) -> None:
    """All of the prompt is there; of window layers what the query behind it sees, and its state."""
    size, wanted = len(asked.prompt), pages_of(asked, limits)
    np.testing.assert_array_equal(moved.rows.reshape(-1)[:size], asked.prompt)
    if moved.window_rows is None or wanted.window_rows is None:
        assert moved.window_rows is wanted.window_rows
        return
    assert moved.window_rows.shape == wanted.window_rows.shape
    assert limits.windows.sliding is not None
    seen = max(0, size + 1 - limits.windows.sliding)
    skipped = seen - limits.page_size * (len(moved.rows) - len(moved.window_rows))
    held = moved.window_rows.reshape(-1)[skipped : skipped + size - seen]
    np.testing.assert_array_equal(held, asked.prompt[seen:])
    assert moved.states == wanted.states


def test_an_imported_prompt_is_never_prefilled() -> None:
    prompt = tuple(range(11))
    trace = run(limits_of(), [Ask(computed_elsewhere(ask_for(prompt, 6)))])
    assert trace.scheduler.prefill_tokens == 0
    assert trace.device.imported == [trace.steps[0].grants[0].pages]
    assert [row.start for step in trace.steps for row in step.rows] == [11, 12, 13, 14, 15]


def test_a_page_granted_for_the_first_decode_is_not_filled() -> None:
    prompt = tuple(range(8))  # two whole pages
    trace = run(limits_of(), [Ask(computed_elsewhere(ask_for(prompt, 6)))])
    first, more = trace.steps[0].grants
    assert (len(first.pages), len(more.pages)) == (2, 1)
    assert trace.device.imported == [first.pages]


def test_an_import_behind_a_prompt_follows_it() -> None:
    """It is younger than the prompt, so it gets no slot while that is half done."""
    long = ask_for(tuple(range(30)), 4)
    trace = run(limits_of(), [Ask(long), Ask(computed_elsewhere(ask_for((1, 2, 3), 4)))])
    first = [step.number for step in trace.steps for row in step.rows if row.sequence == 2][0]
    assert [row.yields for row in trace.steps[first - 2].rows if row.sequence == 1] == [True]
    assert trace.answers[2].finish == "length"


def test_an_import_takes_the_slot_of_one_that_is_computed_anew() -> None:
    """Behind the short context all factors change; nothing else is running in that step."""
    limits = limits_of(
        slots=1, pages=2, page_size=2, max_context=4, token_budget=1, max_logit_rows=1,
        prefill_block=1, short_context=2,
    )  # fmt: skip
    here = replace(ask_for((10,), 3), account="a")
    there = replace(computed_elsewhere(ask_for((10,), 2)), account="b")
    trace = run(limits, [Ask(here), Ask(there)])
    for answer, request in zip(trace.answers.values(), (here, there), strict=True):
        assert [*request.answer, *answer.tokens] == alone(request, limits)[0]


def test_a_preempted_import_is_computed_here() -> None:
    limits = limits_of(slots=3, pages=6, page_size=2, max_context=12)
    warm = Sampling(1.0, 0, 1.0, seed=3)
    asks = [Ask(computed_elsewhere(ask_for((id, id), 8, sampling=warm))) for id in (1, 2, 3)]
    trace = run(limits, asks)
    assert trace.scheduler.preemptions
    assert trace.scheduler.prefill_tokens
    assert len(trace.device.imported) == 3
    for answer, ask in zip(trace.answers.values(), asks, strict=True):
        assert [*ask.engine_request.answer, *answer.tokens] == alone(ask.engine_request, limits)[0]


def test_a_cancel_before_the_import_drops_its_pages_without_a_step() -> None:
    trace = Trace(limits_of())
    trace.add(1, computed_elsewhere(ask_for((1, 2, 3), 20)))
    trace.cancel(1)
    assert trace.traffic.here == {}
    assert trace.turn() is None
    trace.finish()


def test_a_cancel_that_the_engine_notices_later_imports_nothing() -> None:
    trace = Trace(limits_of())
    trace.add(1, computed_elsewhere(ask_for((1, 2, 3), 20)))
    trace.runner.forget(1)
    trace.turn()  # with its row
    assert trace.device.imported == []
    assert trace.traffic.here == {}
    trace.cancel(1)
    trace.finish()


def test_a_cancel_while_its_pages_are_exported_drops_them_once_they_are() -> None:
    traffic = FakeTraffic()
    device = FakeRunner(limits_of(), traffic=traffic)
    runner, offer = HandoffRunner(device, traffic), traffic.offer

    def cancel_and_offer(*what: Any) -> None:
        runner.forget(1)
        traffic.drop(9)  # what a prefiller does: too early
        offer(*what)

    traffic.offer = cancel_and_offer  # type: ignore[method-assign]
    runner.expect_export(1, 9)
    runner.launch(Step(1, (Row(1, 0, 0, (5, 8), True),), (PageGrant(0, 0, (3,)),)))
    assert traffic.network == {}


def test_a_cancel_before_the_last_chunk_exports_nothing() -> None:
    traffic = FakeTraffic()
    runner = HandoffRunner(FakeRunner(limits_of(), traffic=traffic), traffic)
    runner.expect_export(1, 9)
    runner.launch(Step(1, (Row(1, 0, 0, (5, 8), False),), (PageGrant(0, 0, (3,)),)))
    runner.forget(1)
    runner.launch(Step(2, (Row(1, 0, 2, (7,), True),)))
    assert traffic.network == {}


def test_a_cancel_while_the_import_is_in_flight_frees_slot_and_pages() -> None:
    trace = Trace(limits_of())
    trace.add(1, computed_elsewhere(ask_for((1, 2, 3, 4, 5), 20)))
    trace.turn()
    assert trace.scheduler.load().pages_used == 2
    trace.cancel(1)
    assert (trace.scheduler.load().pages_used, trace.scheduler.load().slots_used) == (0, 0)
    trace.finish()


def test_an_answer_of_one_token_is_finished_elsewhere() -> None:
    limits = limits_of(max_context=8)
    assert finish_of(computed_elsewhere(ask_for((5, 8), 1)), limits) == "length"
    assert finish_of(computed_elsewhere(ask_for(tuple(range(7)), 9)), limits) == "length"
    stops = ask_for((5, 8), 9, stop_ids=frozenset({2}))  # 2 is what follows (5, 8)
    assert finish_of(computed_elsewhere(stops), limits) == "stop"
    assert finish_of(computed_elsewhere(ask_for((5, 8), 2)), limits) is None
