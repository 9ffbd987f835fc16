"""An admin server in this process and fake model servers, over real ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from admin_server.cell.reconciler import Timing
from admin_server.config import AdminConfig
from admin_server.process import Running, running
from sax.proto import admin_pb2_grpc
from sax.wire.rpc import open_channel
from tests.admin_server.fake_modelet import FakeModelet

FAST = Timing(poll_s=0.05, silence_s=1.0, settle_s=0.0)


async def eventually(holds: Callable[[], object]) -> None:
    """Return once it holds; the test's own time limit is the only one."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@pytest.fixture
def config(tmp_path) -> AdminConfig:
    """Free ports, and state in a folder of the test's own."""
    return AdminConfig(port=0, status_port=0, fs_root=str(tmp_path / "state"))


@pytest_asyncio.fixture
async def admin(config: AdminConfig) -> AsyncGenerator[Running]:
    """An admin server that plans twenty times a second."""
    async with running(config, FAST) as started:
        yield started


@pytest_asyncio.fixture
async def stub(admin: Running) -> AsyncGenerator[admin_pb2_grpc.AdminStub]:
    """What a client generated from the protos would use."""
    async with open_channel(f"127.0.0.1:{admin.port}") as channel:
        yield admin_pb2_grpc.AdminStub(channel)


@pytest_asyncio.fixture
async def start_modelet(
    admin: Running,
) -> AsyncGenerator[Callable[..., Awaitable[FakeModelet]]]:
    """Starts a fake model server that joins."""
    async with AsyncExitStack() as stack:

        async def start(**options) -> FakeModelet:
            modelet = await FakeModelet(**options).start()
            stack.push_async_callback(modelet.stop)
            await modelet.join(admin.port)
            return modelet

        yield start
