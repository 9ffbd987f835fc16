from __future__ import annotations

import pytest

from model_server.pathways.scheduling.durations import FIRST_S, Durations


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
