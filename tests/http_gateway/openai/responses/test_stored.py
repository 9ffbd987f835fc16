import pytest

from http_gateway.openai.responses import stored
from http_gateway.openai.responses.stored import StoredResponse, StoredResponses
from sax.auth.acl import ANYONE, Principal, enter_call
from sax.errors import InvalidRequest, NotFound
from sax.storage.object_store import StoreUnavailable, open_store
from tests.each_case import each_case
from tests.stores.faulty_store import FaultyStore

TTL_S = 100


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def kept(id: str) -> StoredResponse:
    return StoredResponse({"id": id, "output": [{"id": "msg_2"}]}, [{"id": "msg_1"}])


async def test_a_response_is_kept_for_its_time_and_then_swept():
    store, clock = open_store("memory://"), Clock()
    shelf = StoredResponses(store, TTL_S, clock)
    id = shelf.new_id()
    await shelf.put(kept(id))
    assert await shelf.get(id) == kept(id)
    assert await shelf.conversation(id, "x") == [{"id": "msg_1"}, {"id": "msg_2"}]
    clock.now_s += TTL_S - 1
    await shelf.sweep()
    assert await shelf.get(id) == kept(id)
    clock.now_s += 1
    with pytest.raises(NotFound):
        await shelf.get(id)
    assert len(await store.names("")) == 1
    await shelf.sweep()
    assert await store.names("") == []


async def test_a_key_sees_its_own_responses_only():
    shelf = StoredResponses(open_store("memory://"), TTL_S)
    id = shelf.new_id()
    try:
        enter_call(Principal("alice"))
        await shelf.put(kept(id))
        enter_call(Principal("bob"))
        with pytest.raises(NotFound, match="belongs to another key"):
            await shelf.get(id)
        with pytest.raises(NotFound):
            await shelf.delete(id)
        enter_call(Principal("alice"))
        await shelf.delete(id)
        with pytest.raises(NotFound):
            await shelf.get(id)
    finally:
        enter_call(ANYONE)


async def test_a_conversation_that_became_too_long_is_refused(monkeypatch: pytest.MonkeyPatch):
    stored_responses = StoredResponses(open_store("memory://"), TTL_S)
    id = stored_responses.new_id()
    await stored_responses.put(kept(id))
    monkeypatch.setattr(stored, "MOST_BYTES", 10)
    with pytest.raises(InvalidRequest, match="begin a new one") as refused:
        await stored_responses.conversation(id, "previous_response_id")
    assert refused.value.param == "previous_response_id"


@each_case("id", ["", "x", "resp_", "../resp_1", "resp_" + "g" * 32])
async def test_what_is_no_id_is_not_looked_up(id: str):
    with pytest.raises(NotFound):
        await StoredResponses(FaultyStore(), TTL_S).get(id)


async def test_without_a_store_the_flag_is_named():
    with pytest.raises(InvalidRequest, match="--files") as refused:
        await StoredResponses(None, TTL_S).get("resp_1", "previous_response_id")
    assert refused.value.param == "previous_response_id"


async def test_a_store_that_fails_is_unavailable():
    store = FaultyStore()
    store.fails = "before"
    shelf = StoredResponses(store, TTL_S)
    with pytest.raises(StoreUnavailable):
        await shelf.put(kept(shelf.new_id()))
