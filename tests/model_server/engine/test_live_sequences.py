"""Nobody waits long because of somebody else, and nobody for ever."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.engine.live_sequences import Accounts
from model_server.engine.registry import new_sequence
from model_server.engine.sequence import Sequence
from model_server.engine.types import Step
from tests.model_server.engine.test_scheduler import (
    ask_for,
    assert_answers,
    limits_of,
    some_asks,
    some_limits,
    tight_asks,
    tight_limits,
)
from tests.model_server.engine.trace import Ask, Trace, context_of, residencies, run
from tests.model_server.examples import examples

ACCOUNTS = st.sampled_from(["", "", "ann", "bob", "cid"])


def prompt(size: int) -> tuple[int, ...]:
    return tuple(range(size))


def by(account: str, size: int, max_tokens: int = 4, *, member: str = "", priority: int = 0) -> Ask:
    """A request of somebody, at the beginning."""
    asked = ask_for(prompt(size), max_tokens)
    return Ask(replace(asked, account=account, member=member, priority=priority))


def shared(data: st.DataObject, asks: list[Ask]) -> list[Ask]:
    """The same requests, sent by several accounts, members and priorities."""
    for ask in asks:
        ask.engine_request = replace(
            ask.engine_request,
            account=data.draw(ACCOUNTS),
            member=data.draw(st.sampled_from(["", "", "x", "y"])),
            priority=data.draw(st.sampled_from([0, 0, -1, 5])),
        )
    return asks


def first_step(trace: Trace, id: int) -> int:
    """The number of the step that gave a sequence its first token."""
    return next(
        step.number
        for step in trace.steps
        for row in step.rows
        if row.sequence == id and row.yields
    )


def resident(step: Step) -> set[int]:
    return {row.sequence for row in step.rows}


@examples(st.data(), few=40, many=200)
def test_every_sequence_of_every_account_gets_the_answer_it_would_get_alone(
    data: st.DataObject,
) -> None:
    limits = replace(
        data.draw(some_limits()), max_running_per_account=data.draw(st.none() | st.integers(1, 3))
    )
    asks = shared(data, data.draw(some_asks(limits)))
    trace = run(limits, asks)
    assert_answers(trace, asks)
    assert trace.scheduler.load().accounts == 0


@examples(st.data(), few=40, many=200)
def test_answers_of_many_accounts_survive_a_pool_that_is_always_too_small(
    data: st.DataObject,
) -> None:
    limits = data.draw(tight_limits())
    asks = shared(data, data.draw(tight_asks(context_of(limits))))
    assert_answers(run(limits, asks), asks)


@examples(st.data(), few=40, many=200)
def test_a_displaced_sequence_comes_further_with_every_stay(data: st.DataObject) -> None:
    """With pages enough, a sequence is preempted for others only."""
    limits = limits_of(
        slots=data.draw(st.integers(2, 5)), pages=400, token_budget=24, max_logit_rows=24
    )
    asks = shared(data, data.draw(st.lists(some_long_ask(), min_size=2, max_size=12)))
    trace = run(limits, asks)
    assert_answers(trace, asks)
    for id in range(1, len(asks) + 1):
        assert_further(reached(trace, id))


def reached(trace: Trace, id: int) -> list[int]:
    """How many positions a sequence had at the end of each of its stays."""
    rows = [row for step in trace.steps for row in step.rows if row.sequence == id]
    ends = [row.start + row.count for row in rows]
    return [
        end
        for end, after in zip(ends, [*rows[1:], None], strict=True)
        if not after or not after.start
    ]


def assert_further(stays: list[int]) -> None:
    """Every stay but the last, which ends with the answer, goes an eighth beyond the one before."""
    assert all(8 * then >= 9 * before for before, then in pairwise(stays[:-1])), stays


@st.composite
def some_long_ask(draw: st.DrawFn) -> Ask:
    return Ask(
        ask_for(prompt(draw(st.integers(1, 30))), draw(st.integers(1, 30))),
        draw(st.integers(0, 40)),
    )


def test_a_short_prompt_does_not_wait_for_the_long_one_of_another_account() -> None:
    limits = limits_of(slots=4, pages=1000, max_context=2000, token_budget=36, prefill_block=4)
    trace = Trace(limits)
    trace.add(1, by("heavy", 1900).engine_request)
    trace.turn()
    trace.add(2, by("light", 10).engine_request)
    trace.turn()
    trace.finish()
    assert first_step(trace, 2) == 2
    assert first_step(trace, 1) > 40


def test_prompts_of_three_accounts_share_the_blocks_and_what_a_short_one_leaves_is_used() -> None:
    limits = limits_of(slots=4, token_budget=16, prefill_block=1, max_prefill_blocks=12)
    asks = [by("ann", 30), by("bob", 30), by("cid", 2)]
    trace = run(limits, asks)
    assert {row.sequence: row.count for row in trace.steps[0].rows} == {1: 5, 2: 5, 3: 2}


def test_one_block_a_step_goes_to_each_account_in_turn() -> None:
    limits = limits_of(slots=4, max_prefill_blocks=1, prefill_block=2)
    trace = run(limits, [by("ann", 8), by("bob", 8), by("cid", 8)])
    prefills = [row.sequence for step in trace.steps for row in step.rows if not row.is_decode]
    assert prefills[:6] in ([1, 2, 3, 1, 2, 3], [1, 2, 3, 3, 2, 1])
    assert_answers(trace, [by("ann", 8), by("bob", 8), by("cid", 8)])


def test_a_newcomer_gets_a_slot_after_one_step_although_another_account_has_them_all() -> None:
    limits = limits_of(slots=4, pages=200, max_context=64)
    trace = Trace(limits)
    for id in range(1, 25):
        trace.add(id, by("heavy", 8, 50).engine_request)
    for _ in range(10):
        trace.turn()
    trace.add(25, by("light", 8, 4).engine_request)
    arrived = len(trace.steps)
    trace.finish()
    assert first_step(trace, 25) == arrived + 2
    assert trace.scheduler.preemptions == 1
    assert 4 not in resident(trace.steps[arrived + 1]), "the youngest makes room"


def test_two_accounts_end_up_with_half_of_the_slots_each() -> None:
    limits = limits_of(slots=4, pages=200)
    trace = Trace(limits)
    for id in range(1, 9):
        trace.add(id, by("first", 8, 40).engine_request)
    for _ in range(6):
        trace.turn()
    for id in range(9, 17):
        trace.add(id, by("second", 8, 40).engine_request)
    for _ in range(8):
        step = trace.turn()
    assert step is not None
    assert Counter(id > 8 for id in resident(step)) == {True: 2, False: 2}
    assert trace.scheduler.preemptions == 2
    trace.finish()


def test_one_account_alone_is_served_in_order_of_arrival_and_never_displaced() -> None:
    limits = limits_of(slots=2, pages=200)
    asks = [by("only", 5, 9) for _ in range(6)]
    trace = run(limits, asks)
    starts = [first_step(trace, id) for id in range(1, 7)]
    assert starts == sorted(starts)
    assert trace.scheduler.preemptions == 0


def test_an_accounts_own_requests_come_by_priority_and_then_by_age() -> None:
    limits = limits_of(slots=1)
    asks = [by("ann", 4), by("ann", 4, priority=3), by("ann", 4), by("ann", 4, priority=-2)]
    trace = run(limits, asks)
    assert sorted(range(1, 5), key=lambda id: first_step(trace, id)) == [4, 1, 3, 2]


def test_a_request_behind_urgent_ones_gets_one_slot_in_33() -> None:
    trace = Trace(limits_of(slots=1))
    trace.add(1, by("ann", 4, 1).engine_request)
    for id in (2, 3):
        trace.add(id, by("ann", 4, 1, priority=900).engine_request)
    for id in range(4, 204):
        trace.add(id, by("ann", 4, 1).engine_request)
    trace.finish()
    order = sorted(range(1, 204), key=lambda id: first_step(trace, id))
    assert [order.index(2), order.index(3)] == [33, 66]


def test_a_priority_counts_only_among_the_requests_of_its_own_account() -> None:
    limits = limits_of(slots=1)
    asks = [by("ann", 4, priority=-100) for _ in range(3)] + [by("bob", 4, priority=100)]
    trace = run(limits, asks)
    order = sorted(range(1, 5), key=lambda id: first_step(trace, id))
    assert order.index(4) == 1


def test_an_urgent_prompt_overtakes_a_long_one_of_its_own_account() -> None:
    trace = Trace(limits_of(slots=2, pages=200, max_context=400, token_budget=8))
    trace.add(1, by("ann", 300).engine_request)
    trace.turn()
    trace.add(2, by("ann", 3, priority=-1).engine_request)
    trace.finish()
    assert first_step(trace, 2) == 2


def test_members_divide_what_their_account_gets_and_no_more() -> None:
    """Ten names within one account get as many slots as one name in another."""
    limits = limits_of(slots=4, pages=400)
    asks = [by("gateway", 4, 30, member=str(name)) for name in range(10)]
    asks += [by("ann", 4, 30) for _ in range(4)]
    trace = run(limits, asks)
    assert Counter(id > 10 for id in resident(trace.steps[6])) == {True: 2, False: 2}


def test_a_member_does_not_wait_for_another_of_its_account() -> None:
    limits = limits_of(slots=2, pages=200)
    trace = Trace(limits)
    for id in range(1, 7):
        trace.add(id, by("gateway", 4, 50, member="heavy").engine_request)
    for _ in range(4):
        trace.turn()
    trace.add(7, by("gateway", 4, 3, member="light").engine_request)
    arrived = len(trace.steps)
    trace.finish()
    assert first_step(trace, 7) == arrived + 2


def test_an_account_never_runs_more_than_it_may() -> None:
    limits = replace(limits_of(slots=4, pages=200), max_running_per_account=2)
    trace = run(limits, [by("ann", 4, 9) for _ in range(5)] + [by("bob", 4, 9)])
    for step in trace.steps:
        assert len([id for id in resident(step) if id <= 5]) <= 2
    assert first_step(trace, 6) == 1


def test_pages_run_out_for_the_heaviest_account_first() -> None:
    limits = limits_of(slots=4, pages=12, page_size=2, max_context=24, token_budget=16)
    trace = Trace(limits)
    for id, account in enumerate(("light", "heavy", "heavy", "heavy"), 1):
        trace.add(id, by(account, 2, 14).engine_request)
    trace.finish()
    assert trace.scheduler.preemptions
    assert len(residencies(trace, 1)) == 1


def test_newcomers_without_end_do_not_keep_an_account_waiting_that_was_served_before() -> None:
    """Twelve accounts are always there, eleven of them new, and none comes twice."""
    trace = Trace(limits_of(slots=1, pages=200))
    trace.add(1, by("old", 30, 30).engine_request)
    trace.add(2, by("old", 4, 2).engine_request)
    for id in range(3, 2000):
        trace.add(id, by(f"new {id}", 4, 3).engine_request)
        while trace.scheduler.load().live >= 12:
            trace.turn()
        if trace.answers[2].finish:
            return
    raise AssertionError("the second sequence of the old account never ran")


def test_who_leaves_and_comes_back_owes_what_it_owed() -> None:
    limits = limits_of(slots=2, pages=200, max_context=400)
    trace = Trace(limits)
    trace.add(1, by("patient", 4, 300).engine_request)
    trace.add(2, by("greedy", 150, 2).engine_request)
    while trace.answers[2].finish is None:
        trace.turn()
    for id, account in enumerate(("filler", "greedy", "new"), 3):
        trace.add(id, by(account, 4, 4).engine_request)
    trace.finish()
    assert first_step(trace, 3) < first_step(trace, 5) < first_step(trace, 4)


def test_a_light_user_who_comes_again_and_again_does_not_stop_a_heavy_ones_second_request() -> None:
    limits = limits_of(slots=2, pages=400, max_context=400, token_budget=32)
    trace = Trace(limits)
    for id in (1, 2):
        trace.add(id, by("heavy", 60, 200).engine_request)
    id = 2
    while trace.answers[2].finish is None:
        for _ in range(3):  # in which the heavy user's second request has its slot back
            trace.turn()
        if trace.scheduler.accounts.live("light") == 0:
            id += 1
            trace.add(id, by("light", 4, 2).engine_request)
    assert len(reached(trace, 2)) > 2
    assert_further(reached(trace, 2))
    assert id > 8, "and the light user was served"


def test_accounts_that_cannot_share_the_slots_evenly_do_not_displace_each_other() -> None:
    trace = run(limits_of(slots=3, pages=200), [by(name, 4, 40) for name in "aaabbb"])
    assert trace.scheduler.preemptions == 0


def waiting(account: str, id: int) -> Sequence:
    return new_sequence(id, by(account, 5).engine_request, limits_of())


def share(streams: str, *, half_done: str = "") -> float:
    """Return it for the last of streams, of callers of one letter, beside half-done prompts."""
    accounts = Accounts()
    running = [waiting(name, id) for id, name in enumerate(half_done + streams)]
    for each in running:
        accounts.add(each)
        accounts.admit(each)
    for each in running[len(half_done) :]:
        accounts.finish_prompt(each)
    return accounts.share(running[-1], len(running))


def test_who_streams_alone_gives_back_all_that_a_prompt_took() -> None:
    assert share("a") == 1.0
    assert share("aaaa") == 1.0
    assert share("aaa", half_done="abc") == 1.0


def test_beside_other_callers_streams_a_caller_gives_back_less_the_more_it_has() -> None:
    assert share("ba") == 1.0
    assert share("baaaa") == 0.25
    assert share("aaaab") == 1.0
