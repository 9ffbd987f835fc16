"""The fake is worked out by hand, and it catches what it promises to catch."""

import pytest

from model_server.engine.limits import EngineLimits
from model_server.engine.types import PageGrant, Row, Sampling, SlotSampling, Step
from tests.model_server.engine.fake_runner import FakeRunner, logprob, next_token

LIMITS = EngineLimits(
    slots=2, pages=4, page_size=2, max_context=8, token_budget=8, max_logit_rows=8
)


def test_the_example_of_the_docstring_comes_out() -> None:
    runner = FakeRunner(LIMITS)
    first = Step(1, (Row(1, 0, 0, (5, 8), True),), (PageGrant(0, 0, (3,)),))
    second = Step(2, (Row(1, 0, 2, (), True),), (PageGrant(0, 1, (1,)),))
    assert runner.launch(first).result()[0].rows[0].token == 2
    assert runner.launch(second).result()[0].rows[0].token == 36


def test_a_seed_and_the_position_change_a_sampled_token() -> None:
    warm = Sampling(1.0, 0, 1.0, seed=4)
    runner = FakeRunner(LIMITS)
    step = Step(
        1, (Row(1, 0, 0, (5, 8), True),), (PageGrant(0, 0, (3,)),), (SlotSampling(0, warm),)
    )
    assert runner.launch(step).result()[0].rows[0].token == 2 + (4 + 1) * (1 + 1)
    assert next_token((5, 8), warm) == 12


def test_targets_are_scored_at_the_last_positions_of_a_row() -> None:
    runner = FakeRunner(LIMITS)
    step = Step(1, (Row(1, 0, 0, (5, 8, 9), False, (9, 7)),), (PageGrant(0, 0, (3, 2)),))
    scores = runner.launch(step).result()[0].rows[0].target_logprobs
    assert scores == (logprob((5, 8), 9), logprob((5, 8, 9), 7))
    assert scores[0] == -(1 + 9) / 97


def test_writing_through_an_ungranted_page_is_an_assertion() -> None:
    runner = FakeRunner(LIMITS)
    with pytest.raises(AssertionError, match="no page for position 2"):
        runner.launch(Step(1, (Row(1, 0, 0, (1, 2, 3), True),), (PageGrant(0, 0, (1,)),)))


def test_writing_through_a_page_that_moved_on_is_an_assertion() -> None:
    runner = FakeRunner(LIMITS)
    runner.launch(Step(1, (Row(1, 0, 0, (1,), True),), (PageGrant(0, 0, (1,)),)))
    moved = Step(2, (Row(1, 0, 1, (), True),), (PageGrant(1, 0, (1,)),))
    with pytest.raises(AssertionError, match="granted to another slot"):
        runner.launch(moved)


def test_the_scratch_page_is_never_granted() -> None:
    with pytest.raises(AssertionError, match="page 0"):
        FakeRunner(LIMITS).launch(Step(1, (), (PageGrant(0, 0, (0,)),)))


def test_a_third_step_in_flight_is_an_assertion() -> None:
    runner = FakeRunner(LIMITS)
    runner.launch(Step(1, ()))
    runner.launch(Step(2, ()))
    with pytest.raises(AssertionError, match="at most two"):
        runner.launch(Step(3, ()))
