"""When a silent server counts as lost, in virtual time."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from sax.client.pulse import SILENCE_S, Pulse
from tests import virtual_loop


class Owner:
    """What a connection tells its pulse, and hears from it."""

    def __init__(self) -> None:
        self.owes: bool = True
        self.asked: list[bool] = []
        self.silent_at_s: list[float] = []
        self.pulse = Pulse(lambda: self.owes, self.asked.append, self.note_silence)

    def note_silence(self) -> None:
        self.silent_at_s.append(virtual_loop.now())

    def hear_a_beat(self) -> None:
        self.pulse.heard = self.pulse.beats = True


def test_a_server_that_beats_and_falls_silent_is_reported_within_five_seconds() -> None:
    async def story() -> None:
        owner = Owner()
        owner.pulse.watch()
        for _ in range(20):
            await asyncio.sleep(1)
            owner.hear_a_beat()
        heard_s = virtual_loop.now()
        assert owner.silent_at_s == []
        await asyncio.sleep(60)
        (silent_at_s,) = owner.silent_at_s
        assert SILENCE_S <= silent_at_s - heard_s <= 5

    virtual_loop.run(story())


def test_a_server_that_never_beat_may_be_silent_for_long() -> None:
    async def story() -> None:
        owner = Owner()
        owner.pulse.watch()
        await asyncio.sleep(1)
        owner.pulse.heard = True  # chunks, without beats
        await asyncio.sleep(600)
        assert owner.silent_at_s == []

    virtual_loop.run(story())


def test_a_server_that_beat_once_is_judged_by_its_next_stream_too() -> None:
    async def story() -> None:
        owner = Owner()
        owner.hear_a_beat()
        owner.pulse.watch()
        began_s = virtual_loop.now()
        await asyncio.sleep(60)
        (silent_at_s,) = owner.silent_at_s
        assert SILENCE_S <= silent_at_s - began_s <= 5

    virtual_loop.run(story())


def test_with_nothing_owed_beats_are_called_off_and_silence_is_no_loss() -> None:
    async def story() -> None:
        owner = Owner()
        owner.pulse.watch()
        owner.hear_a_beat()
        await asyncio.sleep(1)
        owner.owes = False
        await asyncio.sleep(60)
        assert (owner.asked, owner.silent_at_s) == ([True, False], [])
        owner.owes = True
        owner.pulse.watch()
        owner.pulse.watch()
        assert owner.asked == [True, False, True]
        await asyncio.sleep(60)
        assert len(owner.silent_at_s) == 1

    virtual_loop.run(story())


def test_a_stopped_pulse_reports_nothing() -> None:
    async def story() -> None:
        owner = Owner()
        owner.hear_a_beat()
        owner.pulse.watch()
        owner.pulse.stop()
        await asyncio.sleep(60)
        assert owner.silent_at_s == []

    virtual_loop.run(story())


@given(st.lists(st.floats(0.01, 12.0), min_size=1, max_size=20))
def test_only_gaps_of_the_silence_limit_are_losses(gaps_s: list[float]) -> None:
    async def story() -> None:
        owner = Owner()
        owner.hear_a_beat()
        owner.pulse.watch()
        for gap_s in gaps_s:
            heard_s, before = virtual_loop.now(), len(owner.silent_at_s)
            await asyncio.sleep(gap_s)
            reported = len(owner.silent_at_s) > before
            assert not (reported and gap_s < SILENCE_S)
            assert reported or gap_s < 5
            if reported:
                assert owner.silent_at_s[-1] - heard_s <= 5
                owner.pulse.watch()
            owner.hear_a_beat()

    virtual_loop.run(story())
