"""Hosts that are far from each other: slower, and otherwise the same."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from model_server.multihost.link import LinkClosed, StageMessage, ZmqLink
from model_server.multihost.meeting import say_hello
from sax.errors import Unavailable
from tests.hosts.slow_proxy import slow_proxy
from tests.model_server.multihost.hosts_here import greeting
from tests.model_server.multihost.test_meeting import WELCOME, Meeting

DELAY_S = 0.2


async def test_hosts_meet_over_a_slow_way() -> None:
    meeting = Meeting(2)
    try:
        async with slow_proxy("127.0.0.1", meeting.port, delay_s=DELAY_S) as proxy:
            began = time.monotonic()
            found = await asyncio.to_thread(say, meeting, proxy.address, 20.0)
            assert found == WELCOME
            assert time.monotonic() - began >= 2 * DELAY_S  # it did go that way
    finally:
        await asyncio.to_thread(meeting.end)


async def test_a_way_on_which_nothing_comes_back_is_given_up_in_words() -> None:
    meeting = Meeting(2)
    try:
        async with slow_proxy("127.0.0.1", meeting.port) as proxy:
            proxy.half_open()
            with pytest.raises(Unavailable, match="does not answer"):
                await asyncio.to_thread(say, meeting, proxy.address, 1.0)
    finally:
        await asyncio.to_thread(meeting.end)


def say(meeting: Meeting, address: str, within_s: float) -> object:
    host, _, port = address.partition(":")
    deadline_s = time.monotonic() + within_s
    return say_hello(meeting.context, greeting(2, 1), host, int(port), deadline_s)


async def test_stages_on_a_slow_way_get_every_step_in_order() -> None:
    first, second = ZmqLink("127.0.0.1", bind="127.0.0.1"), ZmqLink("127.0.0.1", bind="127.0.0.1")
    address, _, key = second.offer.removeprefix("tcp://").partition("/")
    try:
        async with slow_proxy("127.0.0.1", int(address.rpartition(":")[2])) as proxy:
            proxy.delay_s = DELAY_S
            first.connect(f"tcp://{proxy.address}/{key}")
            sending = asyncio.create_task(asyncio.to_thread(send_all, first))
            for number in range(6):
                message = await asyncio.to_thread(second.receive)
                assert message.number == number
                np.testing.assert_array_equal(message.arrays[0], hidden(number))
            await sending
            proxy.half_open()
            waiting = asyncio.create_task(asyncio.to_thread(second.receive))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            second.close()  # the replica's heartbeat found out; nobody may wait for ever
            with pytest.raises(LinkClosed):
                await waiting
    finally:
        first.close()
        second.close()


def send_all(link: ZmqLink) -> None:
    for number in range(6):
        link.send(StageMessage(number, (hidden(number),)))


def hidden(number: int) -> np.ndarray:
    return np.full((64, 256), number, np.float32)
