"""Rates and percentiles say what happened in the window, and only that."""

from hypothesis import given
from hypothesis import strategies as st

from model_server.serving.method_stats import WINDOW_S, MethodStats, WindowCount, percentile


def test_a_fresh_method_has_rates_of_zero_and_no_latency() -> None:
    snapshot = MethodStats().snapshot(now=100.0)
    assert (snapshot.pending, snapshot.successes_per_second, snapshot.errors_per_second) == (
        0,
        0,
        0,
    )
    assert snapshot.mean_s is None
    assert snapshot.p99_s is None


def test_successes_errors_and_the_pending_are_told_apart() -> None:
    stats = MethodStats()
    for _ in range(5):
        stats.begin()
    stats.succeed(now=1.0, latency_s=0.2)
    stats.succeed(now=1.5, latency_s=0.4)
    stats.fail(now=2.0)
    stats.leave()
    snapshot = stats.snapshot(now=2.0)
    assert snapshot.pending == 1
    assert snapshot.successes_per_second == 2 / 60
    assert snapshot.errors_per_second == 1 / 60
    assert snapshot.mean_s is not None
    assert abs(snapshot.mean_s - 0.3) < 1e-9
    assert (snapshot.p50_s, snapshot.p95_s) == (0.2, 0.4)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    stats = MethodStats()
    stats.begin()
    stats.succeed(now=0.0, latency_s=9.0)
    snapshot = stats.snapshot(now=float(WINDOW_S))
    assert snapshot.successes_per_second == 0
    assert snapshot.mean_s is None


@given(st.lists(st.integers(0, 300), max_size=50))
def test_a_rate_counts_the_events_of_the_window(times: list[int]) -> None:
    count = WindowCount()
    for now in sorted(times):
        count.add(float(now))
    end = max(times, default=0)
    assert count.rate(float(end)) == sum(time > end - WINDOW_S for time in times) / WINDOW_S


@given(st.lists(st.floats(0, 10), min_size=1), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_the_least_value_that_covers_the_fraction(
    values: list[float], fraction: float
) -> None:
    ordered = sorted(values)
    found = percentile(ordered, fraction)
    assert found is not None
    assert sum(value <= found for value in values) >= fraction * len(values)
    assert sum(value < found for value in values) < fraction * len(values)
