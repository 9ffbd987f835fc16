"""Writes over a hand-made send: a list of bodies, and a gate that is the client's pace."""

from __future__ import annotations

import asyncio

import pytest

from http_gateway.streams.writer import ConnectionWriter


class Client:
    """Takes writes while its gate is open."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None

    async def write(self, data: bytes) -> None:
        self.got.append(data)
        while not self.gate.is_set():
            await self.gate.wait()
            await asyncio.sleep(0)
        if self.failure:
            raise self.failure


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_put_in_one_turn_of_the_loop_is_one_write():
    client = Client()
    writer = ConnectionWriter(client.write)
    writer.put(b"a")
    writer.put(b"b")
    assert client.got == []
    await turns(1)
    writer.put(b"c")
    await turns(1)
    assert client.got == [b"ab", b"c"]


class QuickClient(Client):
    """Also takes bytes at once, while its gate is open and it was written to before."""

    def at_once(self, data: bytes) -> bool:
        if not (self.got and self.gate.is_set()):
            return False
        self.got.append(data)
        return True


async def test_a_client_that_keeps_up_is_written_to_at_once_after_the_first_write():
    client = QuickClient()
    writer = ConnectionWriter(client.write, client.at_once)
    writer.put(b"a")
    assert client.got == []
    await turns(2)
    writer.put(b"b")
    writer.put(b"c")
    assert client.got == [b"a", b"b", b"c"]


async def test_nothing_is_written_at_once_before_what_waits():
    client = QuickClient()
    writer = ConnectionWriter(client.write, client.at_once)
    client.gate.clear()
    for letter in (b"a", b"b"):
        writer.put(letter)
        await turns(3)
    client.gate.set()  # the write of "a" has not come back yet
    writer.put(b"c")
    assert client.got == [b"a"]
    await turns(9)
    assert client.got == [b"a", b"bc"]
    writer.put(b"d")
    assert client.got == [b"a", b"bc", b"d"]


async def test_a_slow_client_is_waited_for_and_gets_the_rest_in_one_write():
    client = Client()
    client.gate.clear()
    writer = ConnectionWriter(client.write)
    for letter in (b"a", b"b", b"c"):
        writer.put(letter)
        await turns(3)
    assert client.got == [b"a"]
    client.gate.set()
    await turns(9)
    assert client.got == [b"a", b"bc"]


async def test_the_last_write_comes_after_a_write_that_waits_and_takes_the_rest_along():
    client = Client()
    client.gate.clear()
    writer = ConnectionWriter(client.write)
    writer.put(b"a")
    await turns(1)
    writer.put(b"b")
    finishing = asyncio.create_task(writer.finish(client.write, b"!"))
    await turns(3)
    client.gate.set()
    await finishing
    assert b"".join(client.got) == b"ab!"
    await turns(2)
    assert b"".join(client.got) == b"ab!"


@pytest.mark.parametrize("slow", [False, True])
async def test_a_write_that_fails_breaks_the_writer(slow: bool):
    client = Client()
    client.failure = OSError("gone")
    if slow:
        client.gate.clear()
    writer = ConnectionWriter(client.write)
    writer.put(b"a")
    await turns(2)
    client.gate.set()
    with pytest.raises(OSError, match="gone"):
        await writer.task
    with pytest.raises(OSError, match="gone"):
        await writer.finish(client.write, b"!")
    assert client.got == [b"a"]


async def test_stopping_ends_a_write_that_waits_and_forgets_the_rest():
    client = Client()
    client.gate.clear()
    writer = ConnectionWriter(client.write)
    writer.put(b"a")
    await turns(2)
    writer.put(b"b")
    await writer.stop()
    client.gate.set()
    await turns(5)
    assert client.got == [b"a"]
