"""A fake cell on this machine, and the laws that hold after every test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from sax.client import AsyncClient
from sax.types import ModelSpec, PublishedModel
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica

MODEL = "/sax/test/counter"


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("sax-")]


@pytest.fixture(autouse=True)
def _only_this_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAX_ADMIN", raising=False)
    monkeypatch.delenv("SAX_ROOT", raising=False)


@pytest.fixture
async def admin() -> AsyncIterator[FakeAdmin]:
    """An admin with the model published and no replica ready."""
    admin = FakeAdmin()
    admin.models[MODEL] = PublishedModel(
        ModelSpec(model_id=MODEL, model_path="counter", checkpoint="None", replicas=1)
    )
    await admin.start()
    yield admin
    await admin.stop()


@pytest.fixture
async def replica() -> AsyncIterator[FakeReplica]:
    replica = FakeReplica()
    await replica.start()
    yield replica
    await replica.stop()


@pytest.fixture
async def client(admin: FakeAdmin) -> AsyncIterator[AsyncClient]:
    """A client of the fake cell; no task of its own outlives its close."""
    before = asyncio.all_tasks()
    client = AsyncClient(admin.address)
    yield client
    await client.close()
    mine = [task for task in asyncio.all_tasks() - before if _is_ours(task)]
    assert not mine


def _is_ours(task: asyncio.Task[object]) -> bool:
    return task.get_name().startswith(("follow ", "demand ", "the model server"))
