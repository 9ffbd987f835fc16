"""One client for many users: whose token each call carries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from sax.auth.credentials import acting_as
from sax.client import AsyncClient
from sax.errors import AdminUnavailable, Unauthenticated
from sax.proto import admin_pb2, tokens_pb2
from sax.types import GenerateRequest, ModelSpec, PublishedModel, SamplingParams
from tests.sax.conftest import MODEL
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica


def shown(context: Any) -> str:
    return dict(context.invocation_metadata()).get("authorization", "")


class HearingAdmin(FakeAdmin):
    """Remembers what was shown with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.watched_by: list[str] = []
        self.listed_by: list[str] = []

    async def WatchLoc(self, request: admin_pb2.WatchLocRequest, context: Any) -> Any:
        self.watched_by.append(shown(context))
        return await super().WatchLoc(request, context)

    async def List(self, request: admin_pb2.ListRequest, context: Any) -> Any:
        self.listed_by.append(shown(context))
        return await super().List(request, context)


class HearingReplica(FakeReplica):
    """Remembers what was shown with each stream, with each request on one, and with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.streamed_by: list[str] = []
        self.asked_by: list[str] = []
        self.called_by: list[str] = []

    async def Stream(
        self, request_iterator: AsyncIterator[tokens_pb2.ToServer], context: Any
    ) -> AsyncIterator[tokens_pb2.FromServer]:
        self.streamed_by.append(shown(context))

        async def heard() -> AsyncIterator[tokens_pb2.ToServer]:
            async for message in request_iterator:
                if message.HasField("generate"):
                    self.asked_by.append(message.generate.token)
                yield message

        async for reply in super().Stream(heard(), context):
            yield reply

    async def Tokenize(self, request: tokens_pb2.TokenizeRequest, context: Any) -> Any:
        self.called_by.append(shown(context))
        return await super().Tokenize(request, context)


@dataclass
class Heard:
    admin: HearingAdmin
    replica: HearingReplica
    client: AsyncClient

    async def ask(self) -> None:
        request = GenerateRequest(model_id=MODEL, prompt="x", sampling=SamplingParams(max_tokens=2))
        await self.client.generate_to(request, lambda chunk: None)


@pytest_asyncio.fixture
async def cell(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Heard]:
    monkeypatch.setenv("SAX_TOKEN", "ours")
    admin, replica = HearingAdmin(), HearingReplica()
    spec = ModelSpec(model_id=MODEL, model_path="counter", checkpoint="None", replicas=1)
    admin.models[MODEL] = PublishedModel(spec)
    async with AsyncExitStack() as stack:
        for server in (admin, replica):
            await server.start()
            stack.push_async_callback(server.stop)
        admin.ready(MODEL, replica.address)
        client = await stack.enter_async_context(AsyncClient(admin.address))
        yield Heard(admin, replica, client)


async def test_each_request_is_its_users_and_what_they_share_is_the_processs_own(
    cell: Heard,
) -> None:
    for user in ("alice", "bob", ""):
        with acting_as(user):
            await cell.ask()
            await cell.client.tokenize(MODEL, "x")
            await cell.client.list(MODEL)
    assert cell.replica.asked_by == ["alice", "bob", ""]
    assert cell.replica.called_by == ["Bearer alice", "Bearer bob", ""]
    assert cell.admin.listed_by == ["Bearer alice", "Bearer bob", ""]
    # One stream and one watch for all users; the stream itself asks for nothing.
    assert cell.replica.streamed_by == [""]
    assert set(cell.admin.watched_by) == {"Bearer ours"}


async def test_on_its_own_account_a_process_shows_its_own_token(cell: Heard) -> None:
    await cell.ask()
    await cell.client.tokenize(MODEL, "x")
    assert cell.replica.asked_by == ["ours"]
    assert cell.replica.called_by == ["Bearer ours"]


async def test_a_process_that_is_refused_itself_does_not_blame_its_user(cell: Heard) -> None:
    cell.admin.fail = [Unauthenticated("not valid here")]
    with acting_as("alice"), pytest.raises(AdminUnavailable, match="not valid here"):
        await cell.ask()
    cell.admin.fail = [Unauthenticated("not valid here")]
    with pytest.raises(Unauthenticated):
        await cell.ask()
