"""The slow proxy: every byte arrives, in order and late, or not before it is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.hosts.slow_proxy import SlowProxy, slow_proxy

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def proxy() -> AsyncIterator[SlowProxy]:
    """Before a server that says again what it hears, and ends when it hears no more."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with slow_proxy("127.0.0.1", port) as proxy:
        yield proxy
    server.close()
    await server.wait_closed()


async def connect(proxy: SlowProxy) -> Ends:
    host, _, port = proxy.address.partition(":")
    return await asyncio.open_connection(host, int(port))


async def test_all_bytes_arrive_in_order_and_then_the_end(proxy: SlowProxy) -> None:
    reader, writer = await connect(proxy)
    sent = bytes(range(256)) * 2000
    writer.write(sent)
    writer.write_eof()
    assert await reader.read(-1) == sent
    writer.close()


async def test_the_delay_is_there_and_back(proxy: SlowProxy) -> None:
    proxy.delay_s = 0.2
    reader, writer = await connect(proxy)
    loop = asyncio.get_running_loop()
    asked = loop.time()
    writer.write(b"ping")
    assert await reader.readexactly(4) == b"ping"
    assert loop.time() - asked >= 0.4
    writer.close()


async def test_a_long_way_is_no_narrow_way(proxy: SlowProxy) -> None:
    proxy.delay_s = 0.3
    reader, writer = await connect(proxy)
    for _ in range(50):  # all on the way at once: one after the other they would take half a minute
        writer.write(b"x")
        await asyncio.sleep(0.001)
    async with asyncio.timeout(60):
        await reader.readexactly(50)
    writer.close()


async def test_half_open_nothing_passes_and_nothing_is_lost(proxy: SlowProxy) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    proxy.half_open()
    writer.write(b"b")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await reader.read(1)
    proxy.flow()
    assert await reader.readexactly(1) == b"b"
    writer.close()


async def test_a_reset_breaks_every_connection_and_the_next_one_holds(proxy: SlowProxy) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"a")
    await reader.readexactly(1)
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    writer.close()
    reader, writer = await connect(proxy)
    writer.write(b"b")
    assert await reader.readexactly(1) == b"b"
    writer.close()


async def test_where_nobody_listens_it_hangs_up() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    async with slow_proxy("127.0.0.1", port) as proxy:
        reader, writer = await connect(proxy)
        with contextlib.suppress(ConnectionResetError):  # as good as an end
            assert await reader.read(1) == b""
        writer.close()
