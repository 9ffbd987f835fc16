"""The cost of a query."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.engine import EngineStats
from model_server.serving.query_cost import BatchCost, cost_ms

NAMES = [each.name for each in dataclasses.fields(EngineStats)]


def stats(prefill: int, decode: int, busy_s: float) -> EngineStats:
    values = dict.fromkeys(NAMES, 0)
    values |= {"prefill_tokens": prefill, "decode_tokens": decode}
    return EngineStats(**{**values, "busy_s": busy_s})


def test_a_request_is_charged_its_share_of_every_device() -> None:
    before, after = stats(100, 50, 1.0), stats(120, 60, 3.0)
    assert cost_ms(before, after, 30, 1) == 2000
    assert cost_ms(before, after, 15, 1) == 1000
    assert cost_ms(before, after, 15, 8) == 8000


def test_nothing_computed_costs_nothing_and_anything_at_least_a_millisecond() -> None:
    same = stats(1, 1, 1.0)
    assert cost_ms(same, same, 5, 1) == 0
    assert cost_ms(same, stats(2, 1, 1.0), 0, 1) == 0
    assert cost_ms(same, stats(2, 1, 1.0), 1, 1) == 1


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=9), st.floats(0.1, 100))
def test_requests_that_run_together_are_charged_the_time_once(
    tokens: list[int], busy_s: float
) -> None:
    before, after = stats(0, 0, 0.0), stats(sum(tokens), 0, busy_s)
    costs = [cost_ms(before, after, each, 1) for each in tokens]
    assert abs(sum(costs) - 1000 * busy_s) <= len(tokens)


@given(st.integers(1, 32), st.integers(1, 8), st.floats(0.1, 100))
def test_the_inputs_of_a_batch_pay_its_time_on_every_device_in_equal_parts(
    size: int, devices: int, seconds: float
) -> None:
    whole, one = BatchCost(), BatchCost()
    for _ in range(size):
        whole.add(seconds, devices, size)
    one.add(seconds, devices, size)
    assert abs(whole.milliseconds - 1000 * seconds * devices) <= 1
    assert abs(one.milliseconds * size - whole.milliseconds) <= size


def test_a_request_that_ran_in_no_batch_costs_nothing() -> None:
    assert BatchCost().milliseconds == 0
    short = BatchCost()
    short.add(1e-6, 1, 16)
    assert short.milliseconds == 1
