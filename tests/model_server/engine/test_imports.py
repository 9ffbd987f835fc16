"""Prompts computed elsewhere and for others: the answers are the same, and nothing is kept."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.engine.sequence import EngineRequest, finish_of
from model_server.engine.types import EngineLimits, Sampling
from tests.model_server.engine.fake_runner import next_token
from tests.model_server.engine.test_scheduler import ask_for, limits_of, some_asks, some_limits
from tests.model_server.engine.trace import Ask, Trace, alone, run


def computed_elsewhere(submission: EngineRequest, key: int | None) -> EngineRequest:
    """The same request once another server has computed its prompt and first token."""
    token = next_token(submission.prompt, submission.sampling)
    return replace(submission, answer=(token,), import_key=key)


def goes_on(submission: EngineRequest, limits: EngineLimits) -> bool:
    """Whether there is anything left to do after the first token."""
    if submission.score_from is not None:
        return False
    return finish_of(computed_elsewhere(submission, None), limits) is None


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_answers_are_the_same_wherever_prompts_are_computed(data: st.DataObject) -> None:
    """Some with pages, some with their first token alone, among others that do all of it here."""
    limits = data.draw(some_limits())
    asks = data.draw(some_asks(limits))
    moved = []
    for number, ask in enumerate(asks):
        if goes_on(ask.submission, limits) and (how := data.draw(st.integers(0, 2))):
            submission = computed_elsewhere(ask.submission, number if how == 2 else None)
            ask = Ask(submission, ask.turn, ask.cancel_at)
        moved.append(ask)
    trace = run(limits, moved)
    for answer, ask in zip(trace.answers.values(), moved, strict=True):
        if ask.submission.score_from is None:
            tokens, finish = alone(ask.submission, limits)
            given = [*ask.submission.answer, *answer.tokens]
            assert given == tokens[: len(given)]
            assert answer.finish == "cancelled" or (given, answer.finish) == (tokens, finish)
    assert trace.scheduler.finished + trace.scheduler.cancelled == len(asks)
    assert trace.traffic.here == {}, "every fetched prompt was taken in or dropped"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_offered_is_the_prompt_and_what_was_cancelled_is_dropped(
    data: st.DataObject,
) -> None:
    limits = data.draw(some_limits())
    asks = [
        Ask(replace(ask.submission, max_tokens=1, export_key=number), ask.turn, ask.cancel_at)
        if ask.submission.score_from is None
        else ask
        for number, ask in enumerate(data.draw(some_asks(limits)))
    ]
    trace = run(limits, asks)
    for answer, ask in zip(trace.answers.values(), asks, strict=True):
        key = ask.submission.export_key
        if key is None:
            continue
        if answer.finish == "cancelled":
            assert key not in trace.traffic.network
        else:
            held = trace.traffic.network[key].reshape(-1)[: len(ask.submission.prompt)]
            assert tuple(held) == ask.submission.prompt


def test_an_imported_prompt_is_never_prefilled() -> None:
    prompt = tuple(range(11))
    trace = run(limits_of(), [Ask(computed_elsewhere(ask_for(prompt, 6), 7))])
    assert trace.scheduler.prefill_tokens == 0
    assert trace.scheduler.imports == 1
    assert len(trace.steps[0].imports) == 1
    assert trace.steps[0].imports[0].pages == trace.steps[0].grants[0].pages
    assert [row.start for step in trace.steps for row in step.rows] == [11, 12, 13, 14, 15]


def test_a_preempted_import_is_computed_here() -> None:
    limits = limits_of(slots=3, pages=6, page_size=2, max_context=12)
    warm = Sampling(1.0, 0, 1.0, seed=3)
    asks = [Ask(computed_elsewhere(ask_for((id, id), 8, sampling=warm), id)) for id in (1, 2, 3)]
    trace = run(limits, asks)
    assert trace.scheduler.preemptions
    assert trace.scheduler.prefill_tokens
    assert trace.scheduler.imports == 3
    for answer, ask in zip(trace.answers.values(), asks, strict=True):
        assert [*ask.submission.answer, *answer.tokens] == alone(ask.submission, limits)[0]


def test_a_cancel_before_the_import_drops_its_pages_in_a_step_of_its_own() -> None:
    trace = Trace(limits_of())
    trace.add(1, computed_elsewhere(ask_for((1, 2, 3), 20), 5))
    trace.cancel(1)
    step = trace.turn()
    assert step is not None
    assert (step.rows, step.imports, step.drops) == ((), (), (5,))
    trace.finish()
    assert trace.traffic.here == {}


def test_a_cancel_while_the_import_is_in_flight_frees_slot_and_pages() -> None:
    trace = Trace(limits_of())
    trace.add(1, computed_elsewhere(ask_for((1, 2, 3, 4, 5), 20), 5))
    trace.turn()
    assert trace.scheduler.pages_used == 2
    trace.cancel(1)
    assert (trace.scheduler.pages_used, trace.scheduler.slots_used) == (0, 0)
    trace.finish()


def test_an_answer_of_one_token_is_finished_elsewhere() -> None:
    limits = limits_of(max_context=8)
    assert finish_of(computed_elsewhere(ask_for((5, 8), 1), None), limits) == "length"
    assert finish_of(computed_elsewhere(ask_for(tuple(range(7)), 9), None), limits) == "length"
    stops = ask_for((5, 8), 9, stop_ids=frozenset({2}))  # 2 is what follows (5, 8)
    assert finish_of(computed_elsewhere(stops, None), limits) == "stop"
    assert finish_of(computed_elsewhere(ask_for((5, 8), 2), None), limits) is None
