"""A pause stops an engine between two steps, and every request still gets its one answer."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from msgspec.structs import replace

from model_server.engine.engine import Engine, EngineRequest
from model_server.engine.limits import EngineLimits
from model_server.engine.parts.beams import sampling_of
from model_server.engine.types import BeamSettings
from sax.errors import ShuttingDown
from sax.weights import Pausing
from tests.model_server.engine.conftest import Inbox, Start
from tests.model_server.engine.fake_runner import GREEDY, VOCAB, FakeRunner, next_token

LIMITS = EngineLimits(
    slots=3,
    pages=40,
    page_size=4,
    max_context=64,
    token_budget=16,
    max_logit_rows=8,
    prefill_block=2,
    queue=8,
)
PROMPT = tuple(range(3, 14))
ASKED = EngineRequest(prompt=PROMPT, sampling=GREEDY, max_tokens=12, stop_ids=frozenset())


class WeightedRunner(FakeRunner):
    """Its one weight is added to each token as it is written, as keys and values depend on all."""

    weight = 0

    def _write(self, slot: int, position: int, token: int, long: bool) -> None:
        super()._write(slot, position, (token + self.weight) % VOCAB, long)


def answered(tokens: tuple[int, ...], weights: list[int]) -> list[int]:
    """What comes after the tokens; weights: of each position before the last, in turn."""
    made = list(tokens)
    while len(made) < len(weights) + 1:
        seen = [(t + w) % VOCAB for t, w in zip(made, weights, strict=False)]
        made.append(next_token(seen))
    return made[len(tokens) :]


def of_weight(weight: int, count: int = 12) -> list[int]:
    return answered(PROMPT, [weight] * (len(PROMPT) + count - 1))


def begun(start: Start) -> tuple[WeightedRunner, Engine, Inbox, int]:
    """An engine in the middle of an answer, which waits for the test."""
    runner = WeightedRunner(LIMITS, gate=threading.Semaphore(0))
    engine, inbox = start(runner)
    first = engine.submit(ASKED)
    runner.gate.release(4)  # pyright: ignore[reportOptionalMemberAccess]
    inbox.wait(lambda: len(inbox.tokens(first)) >= 3)
    return runner, engine, inbox, first


def changed(runner: WeightedRunner, engine: Engine, how: Pausing) -> Future[None]:
    def change() -> None:
        assert not runner.in_flight, "a step is on the device"
        runner.weight += 1
        engine.pauses.renew()

    return engine.pauses.between(change, how)


def freed(runner: WeightedRunner) -> None:
    runner.gate.release(10_000)  # pyright: ignore[reportOptionalMemberAccess]


def test_answers_that_have_begun_end_before_the_change_and_others_come_behind_it(
    start: Start,
) -> None:
    runner, engine, inbox, first = begun(start)
    done = changed(runner, engine, Pausing.WAIT)
    later = [engine.submit(ASKED) for _ in range(4)]
    freed(runner)
    done.result(60)
    assert (inbox.end(first), inbox.tokens(first)) == ("length", of_weight(0))
    for each in later:
        assert (inbox.end(each), inbox.tokens(each)) == ("length", of_weight(1)), each


def test_a_job_is_done_once_the_last_answer_has_ended(start: Start) -> None:
    runner, engine, inbox, first = begun(start)
    done = changed(runner, engine, Pausing.WAIT)
    freed(runner)
    done.result(60)
    assert (inbox.end(first), inbox.tokens(first)) == ("length", of_weight(0))


def test_answers_that_are_kept_go_on_with_the_keys_and_values_that_they_have(start: Start) -> None:
    runner, engine, inbox, first = begun(start)
    done = changed(runner, engine, Pausing.KEEP)
    freed(runner)
    done.result(60)
    inbox.end(first)
    got = inbox.tokens(first)
    positions = len(PROMPT) + 11
    cut = [answered(PROMPT, [0] * at + [1] * (positions - at)) for at in range(positions)]
    assert got in cut[len(PROMPT) + 2 : len(PROMPT) + 6], "old positions, then new ones"
    again = engine.submit(ASKED)
    inbox.end(again)
    assert inbox.tokens(again) == of_weight(1), "it found keys and values of the old weights"


def test_answers_that_are_recomputed_see_the_new_weights_alone(start: Start) -> None:
    runner, engine, inbox, first = begun(start)
    done = changed(runner, engine, Pausing.RECOMPUTE)
    freed(runner)
    done.result(60)
    assert inbox.end(first) == "length"
    got = inbox.tokens(first)
    old = next(at for at in range(13) if got[:at] != of_weight(0)[:at]) - 1
    rest = answered((*PROMPT, *got[:old]), [1] * (len(PROMPT) + 11))
    assert 3 <= old < 8
    assert got == [*of_weight(0)[:old], *rest]


def test_nothing_is_computed_during_a_pause_and_requests_wait(start: Start) -> None:
    runner, engine, inbox, first = begun(start)
    held = engine.pauses.hold(Pausing.KEEP)
    freed(runner)
    held.result(60)
    launched = runner.launched
    waiting, gone = engine.submit(ASKED), engine.submit(ASKED)
    engine.cancel(gone)
    assert inbox.end(gone) == "cancelled"
    engine.pauses.between(lambda: None, Pausing.WAIT).result(60)  # a pause need not be waited for
    assert (runner.launched, inbox.tokens(waiting)) == (launched, [])
    engine.pauses.release()
    assert {inbox.end(first), inbox.end(waiting)} == {"length"}
    assert inbox.tokens(first) == inbox.tokens(waiting) == of_weight(0)


def test_hypotheses_that_are_kept_are_computed_again_and_leave_no_old_pages_to_others(
    start: Start,
) -> None:
    beams = BeamSettings(2, 1.0, min_tokens=6)
    asked = replace(ASKED, beams=beams, sampling=sampling_of(beams, frozenset({96})))
    plain = start(WeightedRunner(LIMITS))
    runner = WeightedRunner(LIMITS, gate=threading.Semaphore(0))
    runner.weight = -1  # until the change
    engine, inbox = start(runner)
    search = engine.submit(asked)
    assert runner.gate is not None
    runner.gate.release(3)
    runner.wait_launched(4)
    done = changed(runner, engine, Pausing.KEEP)
    freed(runner)
    done.result(60)
    inbox.end(search)
    assert len(inbox.hypotheses[search]) == 2
    inbox.end(again := engine.submit(asked))
    plain[1].end(other := plain[0].submit(asked))
    assert inbox.hypotheses[again] == plain[1].hypotheses[other]


def test_a_job_that_fails_is_told_and_ends_nothing_else(start: Start) -> None:
    runner, engine, inbox, first = begun(start)

    def fail() -> None:
        raise ValueError("no")

    done = engine.pauses.between(fail, Pausing.RECOMPUTE)
    freed(runner)
    with pytest.raises(ValueError, match="no"):
        done.result(60)
    assert (inbox.end(first), inbox.tokens(first)) == ("length", of_weight(0))


def test_an_idle_engine_does_a_job_at_once_and_one_that_is_cancelled_is_never_done(
    start: Start,
) -> None:
    engine, _ = start(FakeRunner(LIMITS))
    assert engine.pauses.between(lambda: 5, Pausing.WAIT).result(60) == 5
    runner, busy, inbox, first = begun(start)
    done = busy.pauses.between(lambda: 1 / 0, Pausing.WAIT)
    assert done.cancel()
    freed(runner)
    assert inbox.end(first) == "length"
    assert not runner.closed


def test_a_closed_engine_ends_what_waits_for_a_pause(start: Start) -> None:
    runner, engine, _, _ = begun(start)
    held = engine.pauses.hold(Pausing.KEEP)
    freed(runner)
    held.result(60)
    engine.close()
    with pytest.raises(ShuttingDown):
        engine.pauses.between(lambda: None, Pausing.KEEP)
