"""A fake cell behind the real application, in process and over a real port."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
import uvicorn

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.storage.object_store import MeasuredStore, open_store
from tests.http_gateway.described import CheckingClient
from tests.http_gateway.fake_cell import FakeCell, published

Connect = Callable[..., httpx.AsyncClient]  # of a config, and perhaps a store


@pytest.fixture
def cell() -> FakeCell:
    return FakeCell(published("/sax/test/smollm2"), published("/sax/test/llama"))


@pytest.fixture
async def connect(cell: FakeCell) -> AsyncIterator[Connect]:
    """Opens clients of gateways in this process, which check every reply's description."""
    opened: list[httpx.AsyncClient] = []

    def open_client(config: GatewayConfig, store: MeasuredStore | None = None) -> httpx.AsyncClient:
        app = create_app(cell, config, store=store)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        opened.append(
            CheckingClient(config.saxml_generation, transport=transport, base_url="http://gateway")
        )
        return opened[-1]

    yield open_client
    for client in opened:
        await client.aclose()


@pytest.fixture
def http(connect: Connect) -> httpx.AsyncClient:
    """A generation 2 gateway."""
    return connect(GatewayConfig())


@pytest.fixture
def keeping(connect: Connect) -> httpx.AsyncClient:
    """A gateway with a store."""
    return connect(GatewayConfig(), open_store("memory://"))


@pytest.fixture
def http_1(connect: Connect) -> httpx.AsyncClient:
    """A generation 1 gateway."""
    return connect(GatewayConfig(saxml_generation=1))


@pytest.fixture
def live_url(cell: FakeCell) -> Iterator[str]:
    """A generation 2 gateway on a real port, in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    settings = uvicorn.Config(
        create_app(cell, GatewayConfig()), log_config=None, lifespan="off", ws="none"
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
