"""An allowance: what is admitted and charged, in stories worked out by hand and in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from http_gateway.limits.allowance import Allowance
from sax.auth.key_limits import KeyLimits


def test_requests_come_back_one_by_one_over_the_minute() -> None:
    limits = KeyLimits(rpm=2)
    allowance = Allowance.fresh(limits, 0.0).begun().begun()
    refusal = allowance.refusal()
    assert refusal is not None
    assert (refusal.limit, refusal.most, refusal.retry_after_s) == ("rpm", 2, 30.0)
    assert allowance.at(limits, 29.0).refusal() is not None
    assert allowance.at(limits, 30.0).refusal() is None


def test_a_balance_of_tokens_may_become_negative_and_is_then_paid_back() -> None:
    limits = KeyLimits(tpm=60)
    allowance = Allowance.fresh(limits, 0.0).begun().ended(100, 0.0)
    refusal = allowance.refusal()
    assert refusal is not None
    assert (refusal.limit, refusal.retry_after_s) == ("tpm", 41.0)
    assert allowance.at(limits, 40.0).refusal() is not None
    assert allowance.at(limits, 41.0).refusal() is None


def test_tokens_are_charged_when_a_request_ends_so_others_begin_before_that() -> None:
    limits = KeyLimits(tpm=10)
    allowance = Allowance.fresh(limits, 0.0).begun()
    assert allowance.refusal() is None
    assert allowance.begun().ended(30, 0.0).ended(30, 0.0).tokens == Allowance.fresh(
        limits, 0.0
    ).tokens.less(60)  # pyright: ignore[reportOptionalMemberAccess]


def test_limits_that_change_while_requests_run_hold_from_then_on() -> None:
    old, new = KeyLimits(concurrent=1), KeyLimits(concurrent=2, rpm=10)
    allowance = Allowance.fresh(old, 0.0).begun()
    assert allowance.refusal() is not None
    allowance = allowance.at(new, 1.0)
    assert allowance.refusal() is None
    allowance = allowance.begun()
    assert allowance.at(KeyLimits(), 2.0).refusal() is None
    assert allowance.ended(0, 2.0).ended(0, 2.0).running == 0


class Key(RuleBasedStateMachine):
    """A key's requests in any order: the model beside it counts all that was admitted."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = KeyLimits(rpm=7, tpm=50, concurrent=3)
        self.allowance = Allowance.fresh(self.limits, 0.0)
        self.now_s = 0.0
        self.admitted = 0
        self.running = 0
        self.charged = 0

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def ask(self) -> None:
        allowance = self.allowance.at(self.limits, self.now_s)
        if allowance.refusal() is None:
            # Paid for before: no request was admitted on a balance that was used up.
            assert self.charged < 50 + 50 * self.now_s / 60 + 1e-6
            self.allowance = allowance.begun()
            self.admitted += 1
            self.running += 1

    @precondition(lambda self: self.running)
    @rule(tokens=st.integers(0, 40))
    def end(self, tokens: int) -> None:
        self.allowance = self.allowance.ended(tokens, self.now_s)
        self.running -= 1
        self.charged += tokens

    @invariant()
    def never_more_than_the_limits(self) -> None:
        assert self.allowance.running == self.running <= 3
        assert self.admitted <= 7 + 7 * self.now_s / 60 + 1e-6


TestKey = Key.TestCase


@given(st.integers(1, 5), st.integers(0, 20))
def test_whatever_ran_gives_its_place_back(concurrent: int, asked: int) -> None:
    limits = KeyLimits(concurrent=concurrent)
    allowance = Allowance.fresh(limits, 0.0)
    admitted = 0
    for _ in range(asked):
        if allowance.refusal() is None:
            allowance, admitted = allowance.begun(), admitted + 1
    assert admitted == min(asked, concurrent)
    for _ in range(admitted):
        allowance = allowance.ended(5, 1.0)
    assert allowance == Allowance.fresh(limits, 1.0)
