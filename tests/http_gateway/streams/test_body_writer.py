"""Streams over real connections: what is written at once and what takes the way of `send`."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from http_gateway.config import GatewayConfig
from http_gateway.connection import connections
from http_gateway.streams.body_writer import BodyWriter
from tests.end_to_end.cell import free_ports

PARTS = 2000
PART = b"x" * 4096


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
