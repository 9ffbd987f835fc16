"""Clients that misbehave below HTTP: they read slowly or not at all, or stop in mid-request."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

from tests.end_to_end.cell import SMOLLM2

_PATIENCE_S = 120.0
_SMALL_BUFFER = 4096  # of the socket, so that the gateway's writes soon wait for the reader


class RudeClient:
    """Sends one streamed completion over a socket of its own, each in its own rude way."""

    def __init__(self, address: tuple[str, int], draw: random.Random) -> None:
        self._address = address
        self._draw = draw
        self._loop = asyncio.get_running_loop()

    @property
    def ways(self) -> dict[str, Callable[[], Coroutine[Any, Any, str]]]:
        """Return each way by name; the coroutines return the outcome."""
        return {
            "slow reader": self.read_slowly,
            "stalled reader": self.read_nothing,
            "half-closed": self.close_own_half,
            "half a request": self.send_half,
        }

    async def read_slowly(self) -> str:
        """Read a whole stream in small bites."""
        with closing(await self._connect()) as connection:
            await self._loop.sock_sendall(connection, self._request())
            text = b""
            while bite := await self._loop.sock_recv(connection, 2048):
                text += bite
                await asyncio.sleep(0.02)
        return _outcome(text)

    async def read_nothing(self) -> str:
        """Leave a stream unread for a while, then close."""
        with closing(await self._connect()) as connection:
            await self._loop.sock_sendall(connection, self._request())
            await asyncio.sleep(self._draw.uniform(0.0, 3.0))
        return "left"

    async def close_own_half(self) -> str:
        """Send a request and the end of the connection; read what comes, if anything does."""
        with closing(await self._connect()) as connection:
            await self._loop.sock_sendall(connection, self._request())
            connection.shutdown(socket.SHUT_WR)
            try:
                while await self._loop.sock_recv(connection, 65536):
                    pass
            except ConnectionError:
                pass
        return "left"

    async def send_half(self) -> str:
        """Send a part of a request, wait, and close."""
        request = self._request()
        with closing(await self._connect()) as connection:
            part = request[: self._draw.randrange(len(request))]
            await self._loop.sock_sendall(connection, part)
            await asyncio.sleep(self._draw.uniform(0.0, 3.0))
        return "left"

    async def _connect(self) -> socket.socket:
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        await self._loop.sock_connect(connection, self._address)
        return connection

    def _request(self) -> bytes:
        fields = {
            "model": SMOLLM2,
            "prompt": "The sea",
            "max_tokens": self._draw.randint(20, 200),
            "ignore_eos": True,
            "stream": True,
        }
        body = json.dumps(fields).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        )
        return head.encode() + b"content-type: application/json\r\nconnection: close\r\n\r\n" + body


def _outcome(reply: bytes) -> str:
    if reply.startswith(b"HTTP/1.1 429 "):
        return "full"
    assert b"data: [DONE]" in reply, f"the stream ended with {reply[-300:]!r}"
    return "answered"


async def be_rude(address: tuple[str, int], draw: random.Random) -> tuple[str, str]:
    """Send one request in a random way. Returns the way and the outcome."""
    ways = RudeClient(address, draw).ways
    way = draw.choice(sorted(ways))
    async with asyncio.timeout(_PATIENCE_S):
        return way, await ways[way]()
