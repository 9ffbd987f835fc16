"""Conversations as logs on a store: entries of several gateways find their own places."""

from __future__ import annotations

import asyncio

import pytest

from http_gateway.openai.responses import kept_conversations
from http_gateway.openai.responses.kept_conversations import KeptConversations
from http_gateway.openai.stored import KeptSpace
from sax.auth.acl import ANYONE, Principal, enter_call
from sax.errors import InvalidRequest, NotFound
from sax.storage.object_store import MeasuredStore, open_store

TTL_S = 100


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def kept(store: MeasuredStore, clock: Clock) -> KeptConversations:
    return KeptConversations(store, TTL_S, KeptSpace(store, ()), clock)


async def test_answers_that_end_at_the_same_time_are_all_kept():
    store, clock = open_store("memory://"), Clock()
    gateways = [kept(store, clock) for _ in range(4)]
    id = (await gateways[0].create({}, [])).id
    await asyncio.gather(
        *(gateway.add(id, [{"id": f"{n}"}]) for n, gateway in enumerate(gateways * 3))
    )
    for gateway in gateways:
        assert {item["id"] for item in await gateway.items(id)} == {f"{n}" for n in range(12)}


async def test_a_conversation_is_kept_from_its_last_entry_on_and_then_swept():
    store, clock = open_store("memory://"), Clock()
    shelf = kept(store, clock)
    id = (await shelf.create({}, [{"id": "a"}])).id
    clock.now_s += TTL_S - 1
    await shelf.add(id, [{"id": "b"}])
    clock.now_s += TTL_S - 1
    await shelf.sweep()
    assert len(await shelf.items(id)) == 2
    clock.now_s += 1
    with pytest.raises(NotFound):
        await shelf.items(id)
    await shelf.sweep()
    assert await store.names("") == []


async def test_a_key_sees_its_own_conversations_only():
    store, clock = open_store("memory://"), Clock()
    shelf = kept(store, clock)
    enter_call(Principal("ann"))
    id = (await shelf.create({}, [])).id
    for other in (Principal("bob"), ANYONE):
        enter_call(other)
        with pytest.raises(NotFound):
            await shelf.items(id)
    enter_call(Principal("ann"))
    assert await shelf.items(id) == []


async def test_a_conversation_has_so_many_entries(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_conversations, "MOST_ENTRIES", 2)
    shelf = kept(open_store("memory://"), Clock())
    id = (await shelf.create({}, [])).id
    await shelf.add(id, [{"id": "a"}])
    with pytest.raises(InvalidRequest, match="begin a new one"):
        await shelf.add(id, [{"id": "b"}])
