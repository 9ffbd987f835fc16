"""The engine's thread: every request gets one answer, whatever happens to it."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from msgspec.structs import replace

from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.limits import EngineLimits
from model_server.engine.types import Sampling
from sax.errors import Internal, PromptTooLong, QueueFull, ShuttingDown
from tests.model_server.engine.conftest import Inbox, Start
from tests.model_server.engine.fake_runner import GREEDY, FakeRunner, RunnerBroke
from tests.model_server.engine.trace import alone, scores_alone

LIMITS = EngineLimits(
    slots=4,
    pages=24,
    page_size=4,
    max_context=64,
    token_budget=16,
    max_logit_rows=8,
    prefill_block=2,
    queue=8,
)


def ask_for(size: int, max_tokens: int = 6, score_from: int | None = None) -> EngineRequest:
    return EngineRequest(
        prompt=tuple(range(size)),
        sampling=GREEDY if size % 2 else Sampling(1.0, 0, 1.0, seed=size),
        max_tokens=max_tokens if score_from is None else 0,
        stop_ids=frozenset({13} if max_tokens < 50 else ()),
        score_from=score_from,
    )


def gated(limits: EngineLimits = LIMITS) -> FakeRunner:
    """A runner whose results wait for the test."""
    return FakeRunner(limits, gate=threading.Semaphore(0))


def test_requests_from_many_threads_get_the_answers_they_would_get_alone(start: Start) -> None:
    engine, inbox = start(FakeRunner(LIMITS))
    asked: dict[int, EngineRequest] = {}

    def client(first: int) -> None:
        for size in range(first, first + 3):
            engine_request = ask_for(size, 20, score_from=size // 2 if size % 5 == 0 else None)
            asked[engine.submit(engine_request)] = engine_request

    clients = [threading.Thread(target=client, args=(first,)) for first in (3, 13, 23, 33)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert len(asked) == 12
    for id, engine_request in asked.items():
        if engine_request.score_from is None:
            assert inbox.end(id) == alone(engine_request, LIMITS)[1]
            assert inbox.tokens(id) == alone(engine_request, LIMITS)[0]
        else:
            assert inbox.end(id) == "score"
            assert inbox.results[id][0].target_logprobs == scores_alone(engine_request)
    assert engine.stats().finished == 12


def test_the_next_step_is_launched_before_the_last_is_read(start: Start) -> None:
    runner = gated()
    engine, inbox = start(runner)
    engine.submit(ask_for(3))
    assert runner.gate
    runner.wait_launched(2)
    assert runner.in_flight == 2
    assert not inbox.results
    runner.gate.release()
    runner.wait_launched(3)
    assert runner.in_flight == 2
    assert len(inbox.tokens(1)) == 1


def test_an_idle_engine_launches_nothing_and_wakes_for_the_next_request(start: Start) -> None:
    runner = FakeRunner(LIMITS)
    engine, inbox = start(runner)
    assert inbox.end(engine.submit(ask_for(3, 1))) == "length"
    steps = runner.launched
    assert steps == 1
    assert inbox.end(engine.submit(ask_for(5, 1))) == "length"
    assert runner.launched == 2


def test_a_cancel_frees_slot_and_pages_within_one_step(start: Start) -> None:
    runner = gated()
    engine, inbox = start(runner)
    id = engine.submit(ask_for(3, 50))
    assert runner.gate
    runner.wait_launched(2)
    engine.cancel(id)
    runner.gate.release()  # step 1 is read; the cancel is taken in before step 3 would be
    runner.gate.release()  # step 2 is surplus
    assert inbox.end(id) == "cancelled"
    assert (engine.stats().slots_used, engine.stats().pages_used) == (0, 0)
    assert runner.launched == 2
    assert engine.stats().cancelled == 1


def test_a_cancel_of_what_has_ended_or_never_was_is_nothing(start: Start) -> None:
    engine, inbox = start(FakeRunner(LIMITS))
    id = engine.submit(ask_for(3, 1))
    assert inbox.end(id) == "length"
    engine.cancel(id)
    engine.cancel(999)
    assert inbox.end(engine.submit(ask_for(3, 1))) == "length"
    assert engine.stats().cancelled == 0


def test_a_full_queue_refuses_and_says_when_to_come_back(start: Start) -> None:
    runner = gated()
    engine, inbox = start(runner)
    ids = [engine.submit(ask_for(3)) for _ in range(LIMITS.slots + LIMITS.queue)]
    with pytest.raises(QueueFull, match=r"full \(12 requests running or waiting\)") as full:
        engine.submit(ask_for(3))
    assert full.value.retry_after_s is not None
    assert 1 <= full.value.retry_after_s <= 60
    assert runner.gate
    runner.gate.release(10_000)
    assert {inbox.end(id) for id in ids} == {alone(ask_for(3), LIMITS)[1]}
    assert inbox.end(engine.submit(ask_for(3, 1))) == "length"


def test_answers_begun_elsewhere_find_a_place_beside_a_full_queue_as_many_as_it_has(
    start: Start,
) -> None:
    runner = gated()
    engine, inbox = start(runner)
    places = LIMITS.slots + LIMITS.queue
    for _ in range(places):
        engine.submit(ask_for(3))
    whole = alone(ask_for(3), LIMITS)[0]
    begun = replace(ask_for(3), answer=tuple(whole[:1]))
    ids = [engine.submit(begun) for _ in range(places)]
    with pytest.raises(QueueFull, match=r"full \(24 requests running or waiting\)"):
        engine.submit(begun)
    assert runner.gate
    runner.gate.release(10_000)
    assert {inbox.end(id) for id in ids} == {"length"}
    assert engine.drain(60)


def test_a_prompt_that_cannot_fit_is_refused_at_once(start: Start) -> None:
    engine, _ = start(FakeRunner(LIMITS))
    with pytest.raises(
        PromptTooLong, match="64 tokens and this model's maximum context length is 64"
    ):
        engine.submit(ask_for(64))
    assert engine.stats().waiting == 0


def test_a_drain_lets_everything_finish_and_takes_nothing_new(start: Start) -> None:
    runner = gated()
    engine, inbox = start(runner)
    ids = [engine.submit(ask_for(3 + 2 * at)) for at in range(6)]
    runner.wait_launched(2)
    assert not engine.drain(0.0)
    with pytest.raises(ShuttingDown):
        engine.submit(ask_for(3))
    assert runner.gate
    runner.gate.release(10_000)
    assert engine.drain(60)
    assert sorted(inbox.ends) == ids
    assert engine.stats().finished == 6
    assert runner.in_flight == 0


def test_a_close_cancels_what_runs_and_what_waits(start: Start) -> None:
    runner = gated()
    engine, inbox = start(runner)
    ids = [engine.submit(ask_for(3, 50)) for _ in range(6)]
    runner.wait_launched(2)
    assert runner.gate
    closer = threading.Thread(target=engine.close)
    closer.start()
    while closer.is_alive():
        runner.gate.release()  # some steps may go by before the close is seen, but not 50
        closer.join(0.01)
    engine.close()
    assert sorted(inbox.ends) == ids
    assert inbox.ends[ids[-1]] == "cancelled"
    assert engine.drain(0)
    with pytest.raises(ShuttingDown):
        engine.submit(ask_for(3))


@pytest.mark.parametrize(
    ("fail_launch", "fail_result"), [(1, None), (4, None), (None, 1), (None, 3)]
)
def test_a_runner_that_fails_fails_every_sequence_by_name_and_stops_the_engine(
    start: Start,
    caplog: pytest.LogCaptureFixture,
    fail_launch: int | None,
    fail_result: int | None,
) -> None:
    runner = gated()
    runner.fail_launch, runner.fail_result = fail_launch, fail_result
    engine, inbox = start(runner)
    # With nothing launched nothing holds the engine back: it may fail before a second submit.
    ids = [engine.submit(ask_for(3, 50)) for _ in range(1 if fail_launch == 1 else 6)]
    assert runner.gate
    runner.gate.release(10_000)
    for id in ids:
        end = inbox.end(id)
        assert isinstance(end, Internal)
        assert "RunnerBroke" in end.text
    assert engine.drain(60)
    assert isinstance(engine.failed, RunnerBroke)
    with pytest.raises(Internal, match="unload and load the model again"):
        engine.submit(ask_for(3))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_deliver_that_fails_stops_the_engine_too(caplog: pytest.LogCaptureFixture) -> None:
    heard = Inbox()
    calls = 0

    def deliver(updates: list[SequenceUpdate]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RunnerBroke("deliver 2")
        heard.deliver(updates)

    engine = Engine(FakeRunner(LIMITS), deliver)
    id = engine.submit(ask_for(3, 50))
    assert isinstance(heard.end(id), Internal)
    assert str(engine.failed) == "deliver 2"
    engine.close()
    assert engine.stats().pages_used == 0
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_the_counters_tell_what_was_done(start: Start) -> None:
    engine, inbox = start(FakeRunner(LIMITS))
    id = engine.submit(ask_for(5, 4))
    assert inbox.end(id) == "length"
    stats = engine.stats()
    assert (stats.steps, stats.prefill_tokens, stats.decode_tokens, stats.tokens) == (4, 5, 3, 4)
    assert (stats.slots, stats.pages, stats.preemptions) == (4, 24, 0)


def test_a_reserved_place_is_counted_waited_for_and_used_while_draining(start: Start) -> None:
    engine, inbox = start(FakeRunner(LIMITS))
    for _ in range(LIMITS.slots + LIMITS.queue):
        engine.reserve(ask_for(3))
    with pytest.raises(QueueFull):
        engine.submit(ask_for(3))
    for _ in range(LIMITS.slots + LIMITS.queue - 1):
        engine.release()
    assert not engine.drain(0.0)
    with pytest.raises(ShuttingDown):
        engine.submit(ask_for(3))
    sequence = engine.submit(ask_for(3), reserved=True)
    assert inbox.end(sequence) == alone(ask_for(3), LIMITS)[1]
    assert engine.drain(60)


def test_a_place_is_reserved_only_for_what_can_be_served(start: Start) -> None:
    engine, _ = start(FakeRunner(LIMITS))
    with pytest.raises(PromptTooLong):
        engine.reserve(ask_for(64))
    assert engine.drain(60)


def of(account: str) -> EngineRequest:
    return replace(ask_for(3), account=account)


def test_another_account_may_wait_beside_a_full_queue_but_only_with_its_share(start: Start) -> None:
    runner = gated()
    engine, _ = start(runner)
    places = LIMITS.slots + LIMITS.queue
    for _ in range(places):
        engine.submit(of("heavy"))
    with pytest.raises(QueueFull, match="this replica is full"):
        engine.submit(of("heavy"))
    for _ in range(places // 2):
        engine.submit(of("light"))
    with pytest.raises(QueueFull, match="this replica is full"):
        engine.submit(of("light"))
    engine.submit(of("third"))
    assert runner.gate is not None
    runner.gate.release(1000)
    assert engine.drain(60)


def test_a_limit_of_queued_requests_counts_one_account_and_is_named(start: Start) -> None:
    engine, _ = start(gated(replace(LIMITS, max_running_per_account=1, max_queued_per_account=2)))
    for _ in range(3):
        engine.reserve(of("ann"))
    with pytest.raises(QueueFull, match="--max_queued_per_account") as refused:
        engine.submit(of("ann"))
    assert refused.value.retry_after_s
    engine.reserve(of("bob"))
    engine.release("ann")
    engine.reserve(of("ann"))
    for account in ("ann", "ann", "ann", "bob"):
        engine.release(account)
    assert engine.drain(60)


def test_updates_of_an_engine_have_times_that_follow_each_other(start: Start) -> None:
    began_s = time.monotonic()
    engine, inbox = start(FakeRunner(LIMITS))
    id = engine.submit(replace(ask_for(9), traced=True))
    inbox.end(id)
    updates = [each for each in inbox.updates if each.sequence == id]
    first = updates[0]
    assert began_s <= first.started_s <= first.chunks[0].began_s
    assert sum(chunk.tokens for chunk in first.chunks) == 9
    times = [each.read_s for each in updates]
    assert times == sorted(times)
    assert first.chunks[-1].ended_s == times[0]
