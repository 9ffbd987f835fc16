"""The scheduler gives every sequence the answer it would get alone, within every limit."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import strategies as st

from model_server.config import PrefixSharing
from model_server.engine.limits import EngineLimits
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest, PromptChunk, SequenceUpdate, StepSpan
from model_server.engine.scheduler import Scheduler
from model_server.engine.types import Sampling, Step, StepResult
from tests.model_server.engine.fake_runner import GREEDY, VOCAB, FakeRunner, likeliest, rank
from tests.model_server.engine.trace import (
    Answer,
    Ask,
    Trace,
    alone,
    context_of,
    residencies,
    run,
    scores_alone,
)
from tests.model_server.examples import examples


def limits_of(
    slots: int = 4,
    pages: int = 64,
    page_size: int = 4,
    max_context: int = 64,
    token_budget: int = 16,
    max_logit_rows: int = 16,
    prefill_block: int = 1,
    max_prefill_blocks: int | None = None,
    short_context: int | None = None,
    prefix_cache: PrefixSharing = "off",
) -> EngineLimits:
    return EngineLimits(
        slots=slots,
        pages=pages,
        page_size=page_size,
        max_context=max_context,
        token_budget=token_budget,
        max_logit_rows=max_logit_rows,
        prefill_block=prefill_block,
        max_prefill_blocks=max_prefill_blocks,
        short_context=short_context,
        prefix_cache=prefix_cache,
    )


def ask_for(
    prompt: tuple[int, ...],
    max_tokens: int | None = None,
    *,
    sampling: Sampling = GREEDY,
    stop_ids: frozenset[int] = frozenset(),
    score_from: int | None = None,
    score_tops: int | None = None,
) -> EngineRequest:
    """Without `max_tokens`: 4, or none if it is a score."""
    if max_tokens is None:
        max_tokens = 4 if score_from is None else 0
    return EngineRequest(
        prompt=prompt,
        sampling=sampling,
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        score_from=score_from,
        score_tops=score_tops,
    )


@st.composite
def some_limits(draw: st.DrawFn) -> EngineLimits:
    slots = draw(st.integers(1, 5))
    block = draw(st.sampled_from([1, 1, 2, 4]))
    return limits_of(
        slots=slots,
        pages=draw(st.integers(2, 14)),
        page_size=draw(st.sampled_from([1, 2, 3, 4])),
        max_context=draw(st.integers(4, 40)),
        token_budget=slots - 1 + block + draw(st.integers(0, 12)),
        max_logit_rows=slots + draw(st.integers(0, 6)),
        prefill_block=block,
        max_prefill_blocks=draw(st.none() | st.integers(1, 4)),
        short_context=draw(st.none() | st.integers(1, 20)),
        prefix_cache=draw(st.sampled_from(["off", "tenant"])),
    )


@st.composite
def some_asks(draw: st.DrawFn, limits: EngineLimits) -> list[Ask]:
    context = context_of(limits)
    return [draw(some_ask(context)) for _ in range(draw(st.integers(1, 8)))]


@st.composite
def some_ask(draw: st.DrawFn, context: int) -> Ask:
    kinds = ["answer", "answer", "answer", "scores", "both"]
    kind = draw(st.sampled_from(kinds if context > 2 else kinds[: context + 2]))
    scored = kind != "answer"
    low, high = 1 + scored, context - (kind != "scores")
    tokens = st.integers(0, VOCAB - 1)
    prompt = tuple(draw(st.lists(tokens, min_size=low, max_size=high)))
    seed = draw(st.integers(0, 50))
    engine_request = ask_for(
        prompt,
        0 if kind == "scores" else draw(st.integers(1, 30)),
        sampling=Sampling(float(draw(st.booleans())), 0, 1.0, seed=seed),
        stop_ids=frozenset(draw(st.lists(tokens, max_size=8))),
        score_from=draw(st.integers(1, len(prompt) - 1)) if scored else None,
        score_tops=draw(st.none() | st.integers(0, 3)) if scored else None,
    )
    turn = draw(st.integers(0, 12))
    leaves = draw(st.integers(0, 4)) == 0
    return Ask(engine_request, turn, turn + draw(st.integers(0, 12)) if leaves else None)


def assert_answers(trace: Trace, asks: list[Ask]) -> None:
    """Every sequence got what it would get alone, or the beginning of it if it was cancelled."""
    for answer, ask in zip(trace.answers.values(), asks, strict=True):
        if ask.engine_request.score_from is not None and answer.finish != "cancelled":
            assert_scores(answer, ask.engine_request)
        if ask.engine_request.max_tokens:
            tokens, finish = alone(ask.engine_request, trace.scheduler.limits)
            if answer.finish == "cancelled":
                assert answer.tokens == tokens[: len(answer.tokens)]
            else:
                assert (answer.tokens, answer.finish) == (tokens, finish)
        elif answer.finish != "cancelled":
            assert answer.finish == "score"
            assert len(answer.results) == 1 or ask.engine_request.score_tops is not None
        assert answer.finish != "cancelled" or ask.cancel_at is not None


def assert_scores(answer: Answer, engine_request: EngineRequest) -> None:
    """Every token was scored once, in order, before the answer's second token."""
    assert answer.scores == scores_alone(engine_request)
    if answer.tokens:
        later = answer.results[-len(answer.tokens) :][1:]
        assert not any(result.target_logprobs for result in later)
    if engine_request.score_tops is not None:
        ends = range(engine_request.score_from or 0, len(engine_request.prompt))
        pairs = [(engine_request.prompt[:end], engine_request.prompt[end]) for end in ends]
        assert answer.ranks == [rank(*pair) for pair in pairs]
        assert answer.tops == [likeliest(*pair, engine_request.score_tops) for pair in pairs]


@examples(st.data(), few=50, many=400)
def test_every_sequence_gets_the_answer_it_would_get_alone(data: st.DataObject) -> None:
    limits = data.draw(some_limits())
    asks = data.draw(some_asks(limits))
    trace = run(limits, asks)
    assert_answers(trace, asks)
    stats = trace.scheduler.load()
    assert stats.finished + stats.cancelled == len(asks)
    assert stats.tokens == sum(len(answer.tokens) for answer in trace.answers.values())


def test_a_sequence_starts_again_once_when_it_outgrows_the_short_factors() -> None:
    """The fake runner checks that no row sees tokens of both kinds."""
    limits = limits_of(short_context=8, token_budget=64)
    for prompt, answer, starts in (
        (5, 4, [(0, False)]),  # 8 positions are computed in all, as many as fit
        (5, 5, [(0, False), (0, True)]),
        (8, 9, [(0, False), (0, True)]),
        (9, 3, [(0, True)]),
    ):
        asks = [Ask(ask_for(tuple(range(prompt)), answer)), Ask(ask_for((1, 2), 6))]
        trace = run(limits, asks)
        assert_answers(trace, asks)
        rows = [row for step in trace.steps for row in step.rows if row.sequence == 1]
        assert [(row.start, row.long) for row in rows if row.start == 0] == starts
        assert trace.scheduler.preemptions == 0


@st.composite
def tight_limits(draw: st.DrawFn) -> EngineLimits:
    """Pages, budget and logit rows are all hardly enough."""
    slots = draw(st.integers(2, 4))
    block = draw(st.sampled_from([1, 2, 3]))
    pages, page_size = draw(st.integers(8, 16)), draw(st.sampled_from([1, 2]))
    return limits_of(
        slots=slots,
        pages=pages,
        page_size=page_size,
        max_context=pages * page_size,
        token_budget=slots - 1 + block + draw(st.integers(0, 2)),
        max_logit_rows=slots + draw(st.integers(0, 4)),
        prefill_block=block,
    )


@st.composite
def tight_asks(draw: st.DrawFn, context: int) -> list[Ask]:
    """Streams that grow beside prompts and scores that take many steps."""
    asks: list[Ask] = []
    for seed in range(draw(st.integers(2, 7))):
        size = draw(st.integers(2, context - 1))
        scored = bool(asks) and draw(st.booleans())
        short = not scored and draw(st.booleans())
        engine_request = ask_for(
            tuple(range(seed, seed + (size // 3 + 1 if short else size))),
            context if not scored or draw(st.booleans()) else 0,
            sampling=Sampling(1.0, 0, 1.0, seed=seed),
            score_from=draw(st.integers(1, min(size - 1, 4))) if scored else None,
        )
        asks.append(Ask(engine_request, draw(st.integers(0, 8))))
    return asks


@examples(st.data(), few=50, many=400)
def test_answers_survive_a_pool_that_is_always_too_small(data: st.DataObject) -> None:
    limits = data.draw(tight_limits())
    asks = data.draw(tight_asks(context_of(limits)))
    trace = run(limits, asks)
    assert_answers(trace, asks)
    for id in range(1, len(asks) + 1):
        times = residencies(trace, id)
        for first, last in times[:-1]:
            assert last - first >= limits.page_size, "it was preempted right after it came"


def test_a_preempted_score_is_gone_on_with_and_not_begun_again() -> None:
    """Two streams eat the pages of a third sequence in the middle of its scores."""
    limits = limits_of(
        slots=3, pages=20, page_size=1, max_context=20, token_budget=6, max_logit_rows=3
    )
    asks = [
        Ask(ask_for((1,), 9)),
        Ask(ask_for((2,), 9)),
        Ask(ask_for(tuple(range(14)), score_from=2)),
    ]
    trace = run(limits, asks)
    assert trace.scheduler.preemptions == 1
    first, second = residencies(trace, 3)
    scored = [
        sum(len(row.targets) for step in trace.steps[a - 1 : b] for row in step.rows)
        for a, b in (first, second)
    ]
    assert all(scored)
    assert sum(scored) == 12
    assert_answers(trace, asks)


@examples(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.integers(4, 20),
    st.data(),
    few=30,
    many=100,
)
def test_a_running_stream_has_a_row_in_every_step(
    prompts: list[int], budget: int, data: st.DataObject
) -> None:
    """With pages enough, from the first token to the last, whatever else is prefilled."""
    limits = limits_of(slots=4, pages=200, token_budget=budget, max_logit_rows=4)
    turns = [data.draw(st.integers(0, 6)) for _ in prompts]
    asks = [
        Ask(ask_for(tuple(range(size)), 6), turn) for size, turn in zip(prompts, turns, strict=True)
    ]
    trace = run(limits, asks)
    assert_answers(trace, asks)
    for id in range(1, len(prompts) + 1):
        rows = [[row for row in step.rows if row.sequence == id] for step in trace.steps]
        first = next(at for at, found in enumerate(rows) if found and found[0].yields)
        decodes = rows[first + 1 : first + 6]
        assert all(found and found[0].is_decode for found in decodes)
        assert not any(rows[first + 6 :]), "max_tokens is known to the host and never overrun"


def test_chunks_are_whole_blocks_but_for_the_last_of_a_prompt() -> None:
    limits = limits_of(slots=3, token_budget=11, prefill_block=4)
    asks = [Ask(ask_for(tuple(range(size)))) for size in (13, 6, 30)]
    trace = run(limits, asks)
    sizes: dict[int, list[int]] = {}
    for row in (row for step in trace.steps for row in step.rows if not row.is_decode):
        sizes.setdefault(row.sequence, []).append(row.count)
    assert all(size % 4 == 0 for chunks in sizes.values() for size in chunks[:-1])
    assert [sum(chunks) for chunks in sizes.values()] == [13, 6, 30]
    assert_answers(trace, asks)


def test_prompts_alone_take_no_more_blocks_than_a_step_has_beside_its_decodes() -> None:
    """The budget counts decodes too; what they leave unused is not given to prompts."""
    limits = limits_of(slots=8, token_budget=16, prefill_block=4, max_prefill_blocks=2)
    asks = [Ask(ask_for(tuple(range(size)))) for size in (13, 2, 2)]
    trace = run(limits, asks)
    sizes = [[row.count for row in step.rows if not row.is_decode] for step in trace.steps[:3]]
    assert sizes == [[8], [5], [2, 2]]
    assert_answers(trace, asks)


def test_a_prompt_that_finds_one_page_left_does_not_take_half_a_block() -> None:
    """The stream takes a page a step; in step 7 it leaves one, and the prompt's block is two."""
    limits = limits_of(slots=2, pages=18, page_size=1, token_budget=3, prefill_block=2)
    asks = [Ask(ask_for((1,), 12)), Ask(ask_for(tuple(range(14)), 2), 1)]
    trace = run(limits, asks)
    assert trace.scheduler.preemptions == 1
    assert [row.sequence for row in trace.steps[6].rows] == [1]
    assert_answers(trace, asks)


def test_scores_fit_any_number_of_logit_rows() -> None:
    prompt = tuple(range(3, 40))
    for logit_rows in range(2, 20):
        limits = limits_of(slots=2, max_logit_rows=logit_rows, prefill_block=4)
        asks = [Ask(ask_for((1, 2), 9)), Ask(ask_for(prompt, score_from=5), 1)]
        assert_answers(run(limits, asks), asks)


def test_a_sampling_is_sent_once_and_again_only_when_the_slot_changes_hands() -> None:
    warm = Sampling(0.5, 0, 1.0, seed=7)
    trace = Trace(limits_of(slots=1))
    for id, sampling in enumerate([warm, warm, GREEDY], 1):
        trace.add(id, ask_for((1, 2), 3, sampling=sampling))
    trace.finish()
    sent = [change.sampling for step in trace.steps for change in step.samplings]
    assert sent == [warm, GREEDY]


def test_an_answer_ends_where_the_context_ends() -> None:
    trace = run(limits_of(max_context=10), [Ask(ask_for((1, 2, 3), 100))])
    assert len(trace.answers[1].tokens) == 7
    assert trace.answers[1].finish == "length"


def test_a_stop_id_costs_one_surplus_row_whose_token_is_dropped() -> None:
    free = run(limits_of(), [Ask(ask_for((5, 8), 10))]).answers[1].tokens
    trace = run(limits_of(), [Ask(ask_for((5, 8), 10, stop_ids=frozenset({free[2]})))])
    assert trace.answers[1].tokens == free[:3]
    assert trace.answers[1].finish == "stop"
    assert len(trace.steps) == 4


def test_a_cancelled_sequence_leaves_no_row_in_the_next_step() -> None:
    trace = Trace(limits_of())
    trace.add(1, ask_for((1, 2, 3), 20))
    trace.add(2, ask_for((4, 5, 6), 20))
    trace.turn()
    trace.cancel(1)
    assert trace.scheduler.load().slots_used == 1
    assert trace.scheduler.load().pages_used == 1
    step = trace.turn()
    assert step is not None
    assert [row.sequence for row in step.rows] == [2]
    trace.cancel(1)
    trace.finish()
    assert trace.scheduler.cancelled == 1


def test_the_youngest_is_preempted_and_never_resumed_in_the_same_step() -> None:
    limits = limits_of(slots=3, pages=6, page_size=2, max_context=12)
    trace = Trace(limits)
    for id in (1, 2, 3):
        trace.add(id, ask_for((id, id), 8))
    lost: list[int] = []
    while trace.scheduler.load().live:
        before, running = trace.scheduler.preemptions, _resident(trace)
        step = trace.turn()
        if step and trace.scheduler.preemptions > before:
            gone = sorted(running - {row.sequence for row in step.rows})
            assert gone
            assert gone[-1] == max(running), "the youngest goes first"
            lost += gone
    trace.finish()
    assert 1 not in lost
    assert 3 in lost


def _resident(trace: Trace) -> set[int]:
    """Who had a row in the last step and wants more."""
    if not trace.steps:
        return set()
    return {row.sequence for row in trace.steps[-1].rows if not trace.answers[row.sequence].finish}


def test_a_step_of_64_decoding_slots_is_at_most_4_kilobytes() -> None:
    """Even when every slot crosses into a new page, and after hours of serving."""
    limits = limits_of(
        slots=64,
        pages=70_000,
        page_size=16,
        max_context=2048,
        token_budget=20_000,
        max_logit_rows=64,
    )
    trace = Trace(limits)
    for id in range(4_000_000_000, 4_000_000_064):
        warm = Sampling(0.7, 40, 0.9, seed=2**64 - 1, logprobs=5)
        trace.add(id, ask_for((1,) * 270, 20, sampling=warm))
    trace.finish()
    decodes = [step for step in trace.steps if all(row.is_decode for row in step.rows)]
    assert max(len(step.rows) for step in decodes) == 64
    assert max(len(step.grants) for step in decodes) == 64
    assert max(len(msgspec.msgpack.encode(step)) for step in decodes) <= 4096
    for step in trace.steps:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=Step) == step


def test_steps_commit_in_order() -> None:
    trace = Trace(limits_of())
    trace.add(1, ask_for((1, 2)))
    scheduler: Scheduler = trace.scheduler
    first, second = scheduler.schedule(), scheduler.schedule()
    assert first
    assert second
    with pytest.raises(AssertionError, match="in order"):
        scheduler.commit(second, StepResult(second.number, ()))


def test_limits_under_which_someone_could_wait_for_ever_are_refused() -> None:
    for limits, complaint in (
        (limits_of(slots=4, token_budget=10, prefill_block=8), "token_budget is 10.* at least 11"),
        (limits_of(slots=4, max_logit_rows=3), "max_logit_rows is 3; .* at least decodes: 4"),
        (limits_of(max_context=1), "max_context"),
        (limits_of(pages=0), "must be positive"),
        (limits_of(max_prefill_blocks=0), "max_prefill_blocks must be positive: 0"),
    ):
        with pytest.raises(ValueError, match=complaint):
            Scheduler(limits)


def test_updates_tell_when_their_step_was_read_and_when_the_sequence_took_a_slot() -> None:
    limits = limits_of(slots=1, token_budget=4)
    scheduler, runner = Scheduler(limits), FakeRunner(limits)
    asked = ask_for(tuple(range(6)), 2)
    scheduler.add(new_sequence(1, msgspec.structs.replace(asked, traced=True), limits))
    scheduler.add(new_sequence(2, ask_for((3, 4), 1), limits))
    updates: list[SequenceUpdate] = []
    for number in range(1, 10):
        step = scheduler.schedule(now_s=float(number))
        if step is not None:
            (result,) = runner.launch(step).result()
            updates += scheduler.commit(step, result, StepSpan(number + 0.25, number + 0.5))
    assert [(each.sequence, each.started_s, each.read_s) for each in updates] == [
        (1, 1.0, 2.5),
        (1, 1.0, 3.5),
        (2, 4.0, 4.5),
    ]
    assert [each.chunks for each in updates] == [
        (PromptChunk(0, 4, 1.25, 1.5), PromptChunk(4, 2, 2.25, 2.5)),
        (),
        (),
    ]
