"""When the count moves, by how much, and that it comes to rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from admin_server.assignment.autoscaler import Scaling, ScalingLoad, ScalingTiming, decide, start
from sax.types import Autoscaling

TIMING = ScalingTiming()
BOUNDS = Autoscaling(min_replicas=1, max_replicas=8, target_queue=4)
SLEEPY = Autoscaling(min_replicas=0, max_replicas=8, target_queue=4)


def begin(bounds: Autoscaling, replicas: int) -> Scaling:
    return start(bounds, replicas, "published", 0.0)


def run(
    scaling: Scaling,
    traffic: ScalingLoad | Callable[[int], ScalingLoad],
    seconds: float,
    bounds: Autoscaling = BOUNDS,
) -> Scaling:
    """A look each second; a function is told the wanted count."""
    for _ in range(round(seconds)):
        now = traffic if isinstance(traffic, ScalingLoad) else traffic(scaling.wanted)
        scaling = decide(bounds, scaling, now, scaling.at_s + 1, TIMING)
    return scaling


def test_a_queue_that_lasts_is_given_the_replicas_that_it_asks_for() -> None:
    before = run(begin(BOUNDS, 2), ScalingLoad(ready=2, queued=12, running=16), 10)
    assert before.wanted == 2
    after = run(before, ScalingLoad(ready=2, queued=12, running=16), 1)
    assert after.wanted == 3
    assert after.reason == "queue of 12 for 2 replicas is above 4 each for 10 s: 3 wanted"


def test_a_queue_of_just_the_target_is_let_be() -> None:
    assert run(begin(BOUNDS, 2), ScalingLoad(ready=2, queued=8, running=16), 500).wanted == 2


def test_a_queue_that_breaks_off_begins_its_window_anew() -> None:
    scaling = begin(BOUNDS, 1)
    for _ in range(20):
        scaling = run(scaling, ScalingLoad(ready=1, queued=40, running=8), 9)
        scaling = run(scaling, ScalingLoad(ready=1, running=8), 1)
    assert scaling.wanted == 1


def test_a_burst_at_the_end_of_the_window_asks_for_no_more_than_lasted() -> None:
    scaling = run(begin(BOUNDS, 1), ScalingLoad(ready=1, queued=6, running=8), 10)
    assert run(scaling, ScalingLoad(ready=1, queued=10**6, running=8), 1).wanted == 2


def test_a_queue_beyond_the_bounds_is_told_and_not_followed() -> None:
    scaling = run(begin(BOUNDS, 8), ScalingLoad(ready=8, queued=100, running=64), 60)
    assert scaling.wanted == 8
    assert scaling.reason == ("queue of 100 for 8 replicas is above 4 each, but max_replicas is 8")
    calm = run(scaling, ScalingLoad(ready=8, running=64), 1)
    assert calm.reason == "published: 8 wanted"


def test_while_replicas_are_on_their_way_the_same_queue_asks_for_no_more() -> None:
    scaling = run(begin(BOUNDS, 2), ScalingLoad(ready=2, queued=12, running=16), 500)
    assert scaling.wanted == 3


def test_before_the_first_is_ready_nobody_knows_how_many_are_needed() -> None:
    scaling = run(begin(SLEEPY, 0), ScalingLoad(held=500), 100, SLEEPY)
    assert scaling.wanted == 1


def test_replicas_go_one_at_a_time_after_one_less_would_do_for_a_while() -> None:
    busy = run(begin(BOUNDS, 3), ScalingLoad(ready=3, running=30), 100)
    assert busy.wanted == 3  # all three are full
    counts = [busy.wanted]
    for _ in range(200):
        busy = run(busy, ScalingLoad(ready=busy.wanted, running=8), 1)
        if busy.wanted != counts[-1]:
            counts.append(busy.wanted)
    assert counts == [3, 2, 1]


def test_the_step_down_waits_for_its_window() -> None:
    busy = run(begin(BOUNDS, 3), ScalingLoad(ready=3, running=30), 5)
    assert run(busy, ScalingLoad(ready=3, running=8), 60).wanted == 3
    after = run(busy, ScalingLoad(ready=3, running=8), 61)
    assert after.wanted == 2
    assert after.reason == (
        "one fewer was enough for a queue of 0 with 8 running for 60 s: 2 wanted"
    )


def test_what_a_replica_was_never_seen_to_run_is_not_counted_on() -> None:
    """Two replicas with ten each: that one could run twenty is a guess."""
    assert run(begin(BOUNDS, 2), ScalingLoad(ready=2, running=20), 500).wanted == 2


def test_nobody_asks_for_a_while_and_none_is_wanted() -> None:
    scaling = run(begin(SLEEPY, 1), ScalingLoad(ready=1), 300, SLEEPY)
    assert scaling.wanted == 1
    scaling = run(scaling, ScalingLoad(ready=1), 1, SLEEPY)
    assert (scaling.wanted, scaling.reason) == (0, "no request for 300 s: 0 wanted")


def test_a_request_that_came_and_went_between_two_looks_keeps_the_model() -> None:
    scaling = begin(SLEEPY, 1)
    for number in range(10):
        scaling = run(scaling, ScalingLoad(ready=1, arrived=number), 200, SLEEPY)
    assert scaling.wanted == 1


def test_the_last_replica_stays_where_one_is_the_least() -> None:
    assert run(begin(BOUNDS, 1), ScalingLoad(ready=1), 10_000).wanted == 1


def test_a_held_request_wakes_a_model_at_once() -> None:
    scaling = run(begin(SLEEPY, 0), ScalingLoad(), 1000, SLEEPY)
    scaling = run(scaling, ScalingLoad(held=2), 1, SLEEPY)
    assert (scaling.wanted, scaling.reason) == (1, "2 requests are held at gateways: 1 wanted")


def test_a_request_that_came_as_the_model_was_let_go_keeps_it() -> None:
    scaling = run(begin(SLEEPY, 1), ScalingLoad(ready=1), 301, SLEEPY)
    assert run(scaling, ScalingLoad(ready=1, running=1), 1, SLEEPY).wanted == 1


def test_other_bounds_act_at_once() -> None:
    scaling = begin(BOUNDS, 2)
    up = decide(Autoscaling(min_replicas=4, max_replicas=8), scaling, ScalingLoad(), 0.0, TIMING)
    assert (up.wanted, up.reason) == (4, "its bounds are 4 to 8 replicas: 4 wanted")
    down = decide(Autoscaling(max_replicas=1), scaling, ScalingLoad(), 0.0, TIMING)
    assert down.wanted == 1


def test_a_clock_that_jumps_ahead_moves_nothing() -> None:
    """An hour between two looks is not an hour seen."""
    for bounds, traffic, count in (
        (SLEEPY, ScalingLoad(ready=1), 1),
        (BOUNDS, ScalingLoad(ready=2, queued=100, running=16), 2),
        (BOUNDS, ScalingLoad(ready=3), 3),
    ):
        scaling = run(begin(bounds, count), traffic, 2, bounds)
        later = decide(bounds, scaling, traffic, scaling.at_s + 3600, TIMING)
        assert later.wanted == count
        back = decide(bounds, later, traffic, 0.0, TIMING)
        assert back.wanted == count


BOUNDED = st.builds(
    lambda least, more, target: Autoscaling(
        min_replicas=least, max_replicas=max(1, least + more), target_queue=target
    ),
    st.integers(0, 4),
    st.integers(0, 12),
    st.sampled_from([0.5, 1, 2, 4, 10]),
)
TRAFFIC = st.builds(
    ScalingLoad,
    ready=st.integers(0, 20),
    queued=st.integers(0, 10**6),
    running=st.integers(0, 1000),
    arrived=st.integers(0, 10**6),
    held=st.integers(0, 10),
)


@settings(deadline=None)
@given(
    BOUNDED,
    st.integers(0, 30),
    st.lists(st.tuples(TRAFFIC, st.floats(-1e6, 1e6)), max_size=50),
)
def test_the_bounds_hold_whatever_comes(
    bounds: Autoscaling, replicas: int, looks: list[tuple[ScalingLoad, float]]
) -> None:
    scaling = begin(bounds, replicas)
    for traffic, step_s in looks:
        scaling = decide(bounds, scaling, traffic, scaling.at_s + step_s, TIMING)
        assert bounds.min_replicas <= scaling.wanted <= bounds.max_replicas
        assert scaling.reason


@pytest.mark.extended
@settings(deadline=None, max_examples=60)
@given(
    BOUNDED,
    st.integers(0, 16),
    st.integers(0, 300),
    st.integers(1, 16),
    st.integers(0, 40),
)
@example(SLEEPY, 1, 30, 8, 20)
def test_a_constant_load_moves_the_count_up_then_down_and_then_no_more(
    bounds: Autoscaling, replicas: int, requests: int, slots: int, loading_s: int
) -> None:
    """So many requests at once, replicas of so many slots that take a while to load."""
    scaling = begin(bounds, replicas)
    ready, since, counts = 0, 0, [scaling.wanted]
    for second in range(3000):
        if ready > scaling.wanted:
            ready = scaling.wanted
        if ready == scaling.wanted:
            since = second
        elif second - since >= loading_s:
            ready, since = ready + 1, second
        running = min(requests, ready * slots)
        traffic = ScalingLoad(
            ready=ready,
            running=running,
            queued=requests - running if ready else 0,
            arrived=second if requests and ready else 0,
            held=0 if ready else requests,
        )
        scaling = decide(bounds, scaling, traffic, second + 1, TIMING)
        if scaling.wanted != counts[-1]:
            counts.append(scaling.wanted)
            moved_at = second
    steps = [after - before for before, after in zip(counts, counts[1:], strict=False)]
    ups = [step > 0 for step in steps]
    if requests:
        assert ups == sorted(ups, reverse=True), counts  # never up again once it went down
    assert len(steps) <= 2 * bounds.max_replicas + 1
    assert not steps or moved_at < 2000, counts
