"""Lanes of confined processes: whose fault it is that there is no answer."""

from __future__ import annotations

import pytest

from model_server.sharing.confined.lanes import LaneKind, Lanes
from model_server.sharing.confined.process import ProcessEnded, ProcessStarved
from sax.errors import Unavailable


class Doubling:
    """Doubles numbers; dies of 13 in both lanes and of 14 in the quick one, and gets no processor
    time for 15."""

    def __init__(self, seconds: float, niceness: int) -> None:
        self._quick = seconds < 1

    def answer(self, ask: int) -> str:
        if ask == 13 or (ask == 14 and self._quick):
            raise ProcessEnded("died")
        if ask == 15:
            raise ProcessStarved("this machine is too busy")
        return str(2 * ask)

    def start(self) -> None: ...

    def stop(self) -> None: ...


def lanes() -> Lanes[int, str]:
    return Lanes(
        LaneKind(
            name="numbers",
            doing="to double",
            process=Doubling,
            quick_s=0.1,
            slow_s=1.0,
            wait_s=3.0,
            refused=lambda why, retry_s: Unavailable(why, retry_after_s=retry_s),
            ended=lambda how: f"ended: {how}",
            spent=lambda answer: answer.startswith("ended"),
        )
    )


def test_a_question_that_ends_its_process_is_asked_again_in_the_slow_lane() -> None:
    asked = lanes()
    told = {number: asked.submit(bytes([number]), number).result() for number in (2, 13, 14)}
    assert told == {2: "4", 13: "ended: died", 14: "28"}


def test_a_question_on_a_busy_machine_is_not_to_blame() -> None:
    """It may be sent again, and its like still go to the quick lane."""
    asked = lanes()
    with pytest.raises(Unavailable, match="too busy: send it later") as caught:
        asked.submit(b"key", 15).result()
    assert caught.value.retry_after_s == 3.0
    assert asked.submit(b"key", 13).result() == "ended: died"
    with pytest.raises(Unavailable, match="too busy"):
        asked.try_out(b"new", 15)
