from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.pathways.scheduling.order import ALONE, FIRST_S, TOGETHER, Durations, GangOrder


def gone(order: GangOrder) -> list[str]:
    return list(order.dispatch())


def test_the_only_client_is_served_at_once_and_in_order() -> None:
    order = GangOrder()
    order.join(1)
    for at in range(ALONE):
        order.submit(1, (0,), 1.0, f"work {at}")
        assert gone(order) == [f"work {at}"]
    assert order.in_flight(0) == ALONE


def test_work_in_flight_is_bounded_and_goes_on_as_it_finishes() -> None:
    order = GangOrder()
    order.join(1)
    for at in range(ALONE + 2):
        order.submit(1, (0,), 1.0, at)
    assert len(gone(order)) == ALONE
    assert order.waiting(1) == 2
    order.finished(1, 0)
    assert gone(order) == [ALONE]


def test_what_costs_nothing_stays_behind_the_work_before_it() -> None:
    order = GangOrder()
    order.join(1)
    for at in range(ALONE + 1):
        order.submit(1, (0,), 1.0, at)
    order.submit(1, (0,), 0.0, "fetch")
    assert "fetch" not in gone(order)
    order.finished(1, 0)
    assert gone(order) == [ALONE, "fetch"]


def test_islands_do_not_wait_for_each_other() -> None:
    order = GangOrder()
    order.join(1)
    for at in range(ALONE + 5):
        order.submit(1, (0,), 1.0, at)
    order.submit(1, (1,), 1.0, "elsewhere")
    assert "elsewhere" in gone(order)


def test_a_request_of_two_islands_waits_for_the_work_before_it_on_both() -> None:
    order = GangOrder()
    order.join(1)
    for at in range(ALONE + 1):
        order.submit(1, (0,), 1.0, at)
    order.submit(1, (0, 1), 1.0, "copy")
    order.submit(1, (1,), 1.0, "after")
    assert {"copy", "after"}.isdisjoint(gone(order))
    order.finished(1, 0)
    assert gone(order) == [ALONE, "copy", "after"]


def test_weights_share_an_island_in_proportion() -> None:
    order, weights = GangOrder(), {1: 1.0, 2: 2.0, 3: 4.0, 4: 8.0}
    for client, weight in weights.items():
        order.join(client, weight)
        for _ in range(2000):
            order.submit(client, (0,), 1.0, client)
    served: Counter[int] = Counter()
    running = gone(order)
    assert len(running) == TOGETHER
    while served.total() < 1500:
        client = running.pop(0)
        served[client] += 1
        order.finished(client, 0)
        running += gone(order)
    for client, weight in weights.items():
        assert served[client] == pytest.approx(1500 * weight / 15, rel=0.1)


def test_shares_are_of_time_not_of_requests() -> None:
    order = GangOrder()
    spent: Counter[int] = Counter()
    costs = {1: 1.0, 2: 5.0}
    for client, cost in costs.items():
        order.join(client)
        for _ in range(1000):
            order.submit(client, (0,), cost, client)
    running = gone(order)
    while spent.total() < 1000:
        client = running.pop(0)
        spent[client] += int(costs[client])
        order.finished(client, 0)
        running += gone(order)
    assert spent[1] == pytest.approx(spent[2], rel=0.1)


def test_a_client_that_was_idle_has_saved_nothing_up() -> None:
    order = GangOrder()
    order.join(1)
    for _ in range(500):
        order.submit(1, (0,), 1.0, 1)
        assert gone(order) == [1]
        order.finished(1, 0)
    order.join(2)
    for client in (1, 2):
        for _ in range(100):
            order.submit(client, (0,), 1.0, client)
    served, running = [], gone(order)
    for _ in range(40):
        served.append(running.pop(0))
        order.finished(served[-1], 0)
        running += gone(order)
    assert 15 <= served.count(1) <= 25


def test_a_paused_client_waits_and_others_go_on() -> None:
    order = GangOrder()
    for client in (1, 2):
        order.join(client)
    order.pause(1, True)
    order.submit(1, (0,), 1.0, "held")
    order.submit(2, (0,), 1.0, "free")
    assert gone(order) == ["free"]
    order.pause(1, False)
    assert gone(order) == ["held"]


def test_reading_passes_what_touches_other_handles() -> None:
    order = GangOrder()
    for client in (1, 2):
        order.join(client)
    order.submit(1, (0,), 1.0, "work", touches=(7, 8))
    order.submit(1, (0, 1), 0.0, "copy", touches=(9,))
    assert order.passes(1, 0, (5, 6))
    assert not order.passes(1, 0, (6, 8))
    assert not order.passes(1, 0, (9,))
    assert order.passes(1, 1, (8,))
    assert order.passes(2, 0, (8,))
    order.pause(1, True)
    assert not order.passes(1, 0, (5,))


def test_a_client_that_leaves_frees_its_places() -> None:
    order = GangOrder()
    for client in (1, 2):
        order.join(client)
        for _ in range(10):
            order.submit(client, (0,), 1.0, client)
    gone(order)
    order.leave(1)
    order.finished(1, 0)  # late
    assert set(gone(order)) == {2}
    assert order.waiting(1) == 0


def test_what_waits_for_a_lost_island_goes_on_to_be_told() -> None:
    order = GangOrder()
    order.join(1)
    for at in range(ALONE + 3):
        order.submit(1, (0,), 1.0, at)
    gone(order)
    order.lost(0)
    assert gone(order) == [ALONE, ALONE + 1, ALONE + 2]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.sets(st.integers(0, 2), min_size=1).map(sorted).map(tuple),
            st.sampled_from([0.0, 1.0, 3.0]),
        ),
        max_size=60,
    ),
    st.randoms(use_true_random=False),
)
def test_everything_goes_once_in_each_clients_order_and_one_global_order(
    wanted: list[tuple[int, tuple[int, ...], float]], random: object
) -> None:
    order = GangOrder()
    for client in range(1, 5):
        order.join(client, float(client))
    went: list[int] = []
    running: list[int] = []

    def step() -> None:
        for at in order.dispatch():
            went.append(at)
            if wanted[at][2] and len(wanted[at][1]) == 1:
                running.append(at)

    for at, (client, islands, cost) in enumerate(wanted):
        order.submit(client, islands, cost, at)
        if random.random() < 0.5:  # type: ignore[attr-defined]
            step()
    step()
    while running:
        at = running.pop(random.randrange(len(running)))  # type: ignore[attr-defined]
        order.finished(wanted[at][0], wanted[at][1][0])
        step()
    assert sorted(went) == list(range(len(wanted)))
    seen: dict[tuple[int, int], list[int]] = defaultdict(list)
    for at in went:
        for island in wanted[at][1]:
            seen[wanted[at][0], island].append(at)
    assert all(each == sorted(each) for each in seen.values())


def test_a_program_is_expected_to_take_what_it_took() -> None:
    durations = Durations()
    assert durations.expected(1, 5) == FIRST_S
    durations.measured(1, 5, island=0, sent_s=10.0, ended_s=10.2)
    assert durations.expected(1, 5) == pytest.approx(0.2)
    assert durations.expected(2, 5) == FIRST_S


def test_waiting_behind_other_work_does_not_count() -> None:
    durations = Durations()
    durations.measured(1, 5, island=0, sent_s=0.0, ended_s=1.0)
    durations.measured(2, 6, island=0, sent_s=0.1, ended_s=1.3)
    assert durations.expected(2, 6) == pytest.approx(0.3)
    durations.measured(3, 7, island=1, sent_s=0.1, ended_s=1.3)
    assert durations.expected(3, 7) == pytest.approx(1.2)


def test_the_latest_measurements_count_most() -> None:
    durations = Durations()
    for at in range(30):
        durations.measured(1, 5, 0, at, at + (0.1 if at < 10 else 0.5))
    assert durations.expected(1, 5) == pytest.approx(0.5, rel=0.01)


def test_one_measurement_that_a_pause_spoilt_does_not_count() -> None:
    durations = Durations()
    for at, took in enumerate([0.1, 0.1, 0.9, 0.1]):
        durations.measured(1, 5, 0, at, at + took)
    assert durations.expected(1, 5) == pytest.approx(0.1)


def test_a_session_is_forgotten() -> None:
    durations = Durations()
    durations.measured(1, 5, 0, 0.0, 1.0)
    durations.forget(1)
    assert durations.expected(1, 5) == FIRST_S
