"""Lanes that decode: refusals, processes that end, and inputs that nobody waits for any more."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field

import pytest

from model_server.loading.images.decoders import DecodingLanes, InputKind
from model_server.sharing.confined.process import ProcessEnded, ProcessStarved
from sax.errors import InvalidRequest, QueueFull, Unavailable


@dataclass(frozen=True)
class Doubled:
    kind: str
    number: int = 0
    text: str = ""


@dataclass
class Doubling:
    """Doubles numbers: refuses 13, exceeds its memory with 14, dies of 15, cannot start with 16,
    gets no processor time for 17."""

    asked: list[int] = field(default_factory=list[int])
    stops: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue[None])

    def answer(self, ask: int) -> Doubled:
        self.asked.append(ask)
        if ask == 15:
            raise ProcessEnded("died")
        if ask == 16:
            raise OSError("no memory")
        if ask == 17:
            raise ProcessStarved("too busy")
        kind = {13: "refused", 14: "runaway"}.get(ask, "doubled")
        return Doubled(kind, 2 * ask, "is unlucky")

    def stop(self) -> None:
        self.stops.put(None)


def lanes_of(process: Doubling, **settings: float) -> DecodingLanes[int, Doubled, int]:
    kind = InputKind(
        name="number",
        param="n",
        retry_s=3.0,
        process=lambda: process,
        read=lambda _, answer: answer.number,
    )
    given = {"lanes": 1, "waiting": 100, "idle_s": 60.0} | settings
    return DecodingLanes(kind, int(given["lanes"]), int(given["waiting"]), given["idle_s"])


def test_an_answer_is_read_and_a_refusal_names_the_input() -> None:
    process = Doubling()
    lanes = lanes_of(process)
    assert lanes.submit(4, 1).result() == 8
    for number, words in ((13, "^the number is unlucky$"), (15, "cannot be decoded: it died")):
        with pytest.raises(InvalidRequest, match=words) as caught:
            lanes.submit(number, 1).result()
        assert caught.value.param == "n"
    for number, words in ((16, "to decode numbers: no memory"), (17, "^too busy: send it later$")):
        with pytest.raises(Unavailable, match=words):
            lanes.submit(number, 1).result()
    assert process.stops.empty()


def test_a_process_ends_after_an_input_that_exceeded_its_memory_and_when_idle() -> None:
    process = Doubling()
    with pytest.raises(InvalidRequest, match="unlucky"):
        lanes_of(process).submit(14, 1).result()
    process.stops.get(timeout=60)
    idle = Doubling()
    lanes = lanes_of(idle, idle_s=0.01)
    assert lanes.submit(1, 1).result() == 2
    idle.stops.get(timeout=60)
    assert lanes.submit(2, 1).result() == 4


def test_what_nobody_waits_for_makes_room_and_is_not_decoded() -> None:
    process = Doubling()
    lanes = lanes_of(process, lanes=0)
    waiting = lanes.submit(1, 90)
    with pytest.raises(QueueFull, match="of numbers wait to be decoded.*retry in 3 s"):
        lanes.submit(2, 20)
    waiting.cancel()
    lanes.submit(3, 20)
    assert process.asked == []
