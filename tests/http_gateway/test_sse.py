"""Streams over a hand-made ASGI channel: a list of messages, and an event that is the client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from http_gateway.backend import while_connected
from http_gateway.body_writer import BodyWriter, ConnectionWriter
from http_gateway.config import GatewayConfig
from http_gateway.connection import connections
from http_gateway.sse import Ending, EventSource, EventStream, Script, event
from sax.errors import Cancelled, Internal, QueueFull, SaxError
from tests.end_to_end.cell import free_ports

PARTS = 2000
PART = b"x" * 4096


class Channel:
    """One exchange as the stream sees it."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()
        self.firsts = 0
        self.endings: list[Ending] = []

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def writes(self) -> list[bytes]:
        return [message["body"] for message in self.sent if "body" in message]

    def first(self) -> None:
        self.firsts += 1

    def script(self, closing: Callable[[], bytes] = lambda: b"<end>") -> Script:
        return Script(
            closing=closing,
            failure=lambda error: f"<{error.text}>".encode(),
            on_first=self.first,
            on_end=self.endings.append,
        )

    async def run(self, *values: AsyncGenerator[str, None], script: Script | None = None) -> None:
        sources = [EventSource(partial(pour, one), str.encode) for one in values]
        await EventStream(sources, script or self.script())({}, self.receive, self.send)


async def pour(values: AsyncGenerator[str, None], sink: Callable[[str], None]) -> None:
    """A source from a generator."""
    async with aclosing(values):
        async for value in values:
            sink(value)


Step = Callable[[], Awaitable[object]]


async def pause() -> None:
    """Wait for the loop, by a bare yield."""
    await asyncio.sleep(0)


async def tick() -> None:
    """Wait for a future."""
    await asyncio.sleep(0.0001)


async def told(*parts: str | Step | Exception) -> AsyncGenerator[str, None]:
    """Yields texts, awaits functions, raises errors."""
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Exception):
            raise part
        else:
            await part()


def test_an_event_is_its_data_and_an_empty_line():
    assert event(b"{}") == b"data: {}\n\n"


async def test_values_that_are_ready_at_once_leave_in_one_write():
    channel = Channel()
    await channel.run(told("a", "b", tick, "c", tick, "d", "e"))
    assert channel.writes == [b"ab", b"c", b"de", b"<end>"]
    assert (channel.firsts, channel.endings) == (1, [Ending.COMPLETE])


async def test_a_value_is_written_before_its_source_waits():
    channel = Channel()
    seen: list[int] = []

    async def look() -> None:
        seen.append(len(channel.writes))
        await pause()
        seen.append(len(channel.writes))

    await channel.run(told("a", look, "b"))
    assert seen == [0, 1]


async def test_the_header_forbids_caching_and_buffering():
    channel = Channel()
    await channel.run(told("a"))
    start = channel.sent[0]
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert (b"content-type", b"text/event-stream; charset=utf-8") in start["headers"]
    assert (b"cache-control", b"no-cache") in start["headers"]
    assert (b"x-accel-buffering", b"no") in start["headers"]
    assert [message["more_body"] for message in channel.sent[1:]] == [True, False]


async def test_an_error_before_the_first_byte_is_raised_and_nothing_is_sent():
    channel = Channel()
    with pytest.raises(QueueFull):
        await channel.run(told(tick, QueueFull("full")), told(tick, tick))
    assert (channel.sent, channel.endings) == ([], [Ending.REFUSED])


async def test_an_error_after_the_first_byte_is_the_last_event():
    channel = Channel()
    await channel.run(told("a", tick, "b", QueueFull("full")))
    assert channel.writes == [b"a", b"b", b"<full>"]
    assert channel.endings == [Ending.BROKEN]


async def test_a_bug_in_a_source_is_told_without_its_text():
    channel = Channel()
    await channel.run(told("a", tick, RuntimeError("secret")))
    assert b"secret" not in b"".join(channel.writes)
    assert channel.writes[-1].startswith(b"<internal error")


async def test_a_stream_that_cannot_close_well_ends_with_the_error():
    def closing() -> bytes:
        raise Internal("not whole")

    channel = Channel()
    await channel.run(told("a", tick), script=channel.script(closing))
    assert (b"".join(channel.writes), channel.endings) == (b"a<not whole>", [Ending.BROKEN])


async def test_a_client_that_goes_away_closes_every_source():
    channel = Channel()
    closed: list[str] = []

    async def endless(name: str) -> AsyncGenerator[str, None]:
        try:
            yield name
            await asyncio.Event().wait()
        finally:
            closed.append(name)

    running = asyncio.create_task(channel.run(endless("a"), endless("b")))
    while len(b"".join(channel.writes)) < 2:
        await pause()
    channel.left.set()
    await running
    assert (sorted(closed), channel.endings) == (["a", "b"], [Ending.GONE])
    assert channel.sent[-1]["more_body"] is True


async def test_a_failing_source_closes_the_others():
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[str, None]:
        try:
            yield "a"
            await asyncio.Event().wait()
        finally:
            closed.set()

    channel = Channel()
    await channel.run(endless(), told(tick, SaxError("broke")))
    assert closed.is_set()
    assert channel.writes[-1] == b"<broke>"


async def test_cancelling_the_stream_while_it_writes_closes_its_source():
    closed = asyncio.Event()
    blocked = asyncio.Event()

    async def endless() -> AsyncGenerator[str, None]:
        try:
            yield "a"
            await asyncio.Event().wait()
        finally:
            closed.set()

    class Stuck(Channel):
        async def send(self, message: Message) -> None:
            blocked.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(Stuck().run(endless()))
    await blocked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert closed.is_set()


async def test_a_slow_client_gets_fewer_and_larger_writes():
    """While the first write is stuck, what the second source says is kept for the next one."""
    gate = asyncio.Event()

    class Slow(Channel):
        async def send(self, message: Message) -> None:
            await super().send(message)
            await gate.wait()

    channel = Slow()
    other_done = asyncio.Event()

    async def other() -> AsyncGenerator[str, None]:
        await tick()
        for letter in "bcd":
            yield letter
        other_done.set()
        await tick()

    running = asyncio.create_task(channel.run(told("a", tick), other()))
    await other_done.wait()
    gate.set()
    await running
    assert b"".join(channel.writes) == b"abcd<end>"
    assert b"bcd" in channel.writes


async def test_a_source_may_wait_by_any_awaitable():
    async def inner() -> str:
        await asyncio.gather(tick(), tick())
        return "b"

    async def values() -> AsyncGenerator[str, None]:
        yield "a"
        yield await asyncio.create_task(inner())
        yield await asyncio.wait_for(inner(), 60)
        async with asyncio.timeout(60):
            await tick()
        yield "c"

    channel = Channel()
    await channel.run(values())
    assert b"".join(channel.writes) == b"abbc<end>"


async def test_a_source_may_catch_what_it_waited_for():
    async def fails() -> None:
        await tick()
        raise KeyError

    async def values() -> AsyncGenerator[str, None]:
        yield "a"
        try:
            await asyncio.create_task(fails())
        except KeyError:
            yield "b"
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            yield "c"

    channel = Channel()
    await channel.run(values())
    assert b"".join(channel.writes) == b"abc<end>"


plots = st.lists(st.sampled_from(["x", "yy", "z\n", pause, tick, ""]), max_size=12)


@given(st.lists(plots, min_size=1, max_size=4))
def test_every_value_of_every_source_is_sent_once_and_in_order(stories: list[list[str | Step]]):
    async def tell() -> None:
        channel = Channel()
        numbered = [
            told(*(f"{i}{part!r};" if isinstance(part, str) else part for part in story))
            for i, story in enumerate(stories)
        ]
        await channel.run(*numbered)
        said = b"".join(channel.writes).decode().removesuffix("<end>").split(";")[:-1]
        for i, story in enumerate(stories):
            expected = [f"{i}{part!r}" for part in story if isinstance(part, str)]
            assert [part for part in said if part.startswith(str(i))] == expected
        assert channel.endings == [Ending.COMPLETE]
        assert [message["more_body"] for message in channel.sent[1:-1]].count(False) == 0

    asyncio.run(tell())


async def test_work_is_cancelled_when_the_client_goes_away():
    channel = Channel()
    cancelled = asyncio.Event()

    async def work() -> None:
        channel.left.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(Cancelled):
        await while_connected(channel.receive, work())
    assert cancelled.is_set()


async def test_work_that_ends_first_gives_its_result_or_its_error():
    async def fail() -> None:
        raise QueueFull("full")

    assert await while_connected(Channel().receive, asyncio.sleep(0, "done")) == "done"
    with pytest.raises(QueueFull):
        await while_connected(Channel().receive, fail())


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


class Streaming:
    """Sends PARTS numbered parts, at once where that is possible, as long as the client reads."""

    def __init__(self) -> None:
        self.at_once = 0
        self.early: bool | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = BodyWriter.of(scope)
        assert writer is not None
        self.early = writer.write(b"too early")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(PARTS):
            part = b"%05d" % number + PART
            if writer.write(part):
                self.at_once += 1
            else:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        assert writer.size == self.at_once * (len(PART) + 5)
        await send({"type": "http.response.body", "body": b""})
        assert not writer.write(b"too late")


@pytest.fixture
async def port() -> int:
    return free_ports(1)[0]


async def read(port: int, pause_s: float, version: str = "1.1") -> bytes:
    """Return the body of a reply that is read in bites."""
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, ("127.0.0.1", port))
        request = (
            b"GET / HTTP/%b\r\nhost: localhost\r\nconnection: close\r\n\r\n" % version.encode()
        )
        await loop.sock_sendall(connection, request)
        bites: list[bytes] = []
        while bite := await loop.sock_recv(connection, 1 << 16):
            bites.append(bite)
            await asyncio.sleep(pause_s)
    return unchunked(b"".join(bites).partition(b"\r\n\r\n")[2])


def unchunked(text: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while at < len(text):
        begin = text.index(b"\r\n", at) + 2
        size = int(text[at : begin - 2], 16)
        parts.append(text[begin : begin + size])
        at = begin + size + 2
    return b"".join(parts)


@pytest.mark.extended
@pytest.mark.parametrize("pause_s", [0.0, 0.001])
async def test_a_stream_is_whole_and_in_order_at_any_pace_of_its_reader(port: int, pause_s: float):
    app = Streaming()
    config = GatewayConfig(access_log="off")
    settings = uvicorn.Config(
        app, port=port, http=connections(config), lifespan="off", log_config=None
    )
    server = uvicorn.Server(settings)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event
        await asyncio.sleep(0.01)
    body = await read(port, pause_s)
    server.should_exit = True
    await serving
    assert body == b"".join(b"%05d" % number + PART for number in range(PARTS))
    assert app.early is False
    assert 0 < app.at_once < PARTS  # the reader's buffer is small: some parts wait for it
