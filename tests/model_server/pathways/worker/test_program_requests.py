"""Programs on CPU devices take turns, unless one needs the other's results anyway."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.pathways.worker.program_requests import Turns

FIRST, SECOND = object(), object()  # devices


class FakeToken:
    """A program that is not done until somebody has waited for it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.waited = False
        self._fails = fails

    def block_until_ready(self) -> None:
        self.waited = True
        if self._fails:
            raise RuntimeError("the program failed")


def launched(turns: Turns, *devices: Any, results: list[Any], **how: bool) -> FakeToken:
    token = FakeToken(**how)
    turns.launched(devices, token, results)
    return token


def test_a_program_of_another_lane_waits_for_the_last_one() -> None:
    turns = Turns()
    before = launched(turns, FIRST, results=["a"])
    turns.wait((FIRST,), ["b"])  # type: ignore[arg-type]
    assert before.waited


def test_a_program_that_takes_the_last_ones_results_is_launched_at_once() -> None:
    turns = Turns()
    before = launched(turns, FIRST, results=["pages", "tokens"])
    turns.wait((FIRST,), ["weights", "pages"])  # type: ignore[arg-type]
    assert not before.waited


def test_devices_have_turns_of_their_own() -> None:
    turns = Turns()
    before = launched(turns, FIRST, results=["a"])
    turns.wait((SECOND,), ["b"])  # type: ignore[arg-type]
    assert not before.waited
    other = launched(turns, SECOND, results=["c"])
    turns.wait((FIRST, SECOND), ["d"])  # type: ignore[arg-type]
    assert before.waited
    assert other.waited


@pytest.mark.parametrize("fails", [False, True])
def test_a_program_that_failed_holds_nobody_up(fails: bool) -> None:
    turns = Turns()
    before = launched(turns, FIRST, results=["a"], fails=fails)
    turns.wait((FIRST,), ["b"])  # type: ignore[arg-type]
    assert before.waited
