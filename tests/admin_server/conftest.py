"""An admin server in this process and fake model servers, over real ports.

A test marked `virtual_time` has both on the virtual clock instead, joined without sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
import pytest_asyncio

from admin_server.cell.reconciler import Timing
from admin_server.config import NO_STATUS_PAGE, AdminConfig
from admin_server.process import Running, running
from sax.proto import admin_pb2_grpc
from sax.wire.rpc import open_channel
from tests.admin_server.fake_modelet import FakeModelet
from tests.admin_server.virtual_admin import WiredModelet, wires  # noqa: F401
from tests.virtual_loop import VirtualLoop

# So much silence that no stall of this process, which is both sides, comes to it.
FAST = Timing(poll_s=0.05, silence_s=3.0, settle_s=0.0)


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Give a test marked `virtual_time` a loop in which waiting takes no time."""
    return {"loop": VirtualLoop if _is_virtual(item) else asyncio.new_event_loop}


def _is_virtual(item: pytest.Item) -> bool:
    return item.get_closest_marker("virtual_time") is not None


async def eventually(holds: Callable[[], object]) -> None:
    """Return once it holds. On the virtual clock, raises TimeoutError when it never does.

    In real time the test's own limit comes first.
    """
    async with asyncio.timeout(600):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture
def status_port() -> int:
    """No status page, unless a test says otherwise: uvicorn takes 0.2 s to come and go."""
    return NO_STATUS_PAGE


@pytest.fixture
def config(tmp_path, status_port: int) -> AdminConfig:
    """A free port, and state in a folder of the test's own."""
    return AdminConfig(port=0, status_port=status_port, fs_root=str(tmp_path / "state"))


@pytest_asyncio.fixture
async def admin(request: pytest.FixtureRequest, config: AdminConfig) -> AsyncGenerator[Running]:
    """An admin server that plans twenty times a second."""
    virtual = _is_virtual(request.node)
    start = request.getfixturevalue("wires").leading if virtual else running
    async with start(config, FAST) as started:
        yield started


@pytest_asyncio.fixture
async def stub(admin: Running) -> AsyncGenerator[admin_pb2_grpc.AdminStub]:
    """What a client generated from the protos would use."""
    async with open_channel(f"127.0.0.1:{admin.port}") as channel:
        yield admin_pb2_grpc.AdminStub(channel)


@pytest_asyncio.fixture
async def start_modelet(
    request: pytest.FixtureRequest, admin: Running
) -> AsyncGenerator[Callable[..., Awaitable[FakeModelet]]]:
    """Starts a fake model server that joins."""
    virtual = _is_virtual(request.node)
    make = partial(WiredModelet, request.getfixturevalue("wires")) if virtual else FakeModelet
    async with AsyncExitStack() as stack:

        async def start(**options) -> FakeModelet:
            modelet = await make(**options).start()
            stack.push_async_callback(modelet.stop)
            await modelet.join(admin.port)
            return modelet

        yield start
