"""/v1/conversations over the fake cell, and answers that add to a conversation."""

from __future__ import annotations

from typing import Any

import httpx
import openai

from http_gateway.config import GatewayConfig
from sax.chat import Message
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell

PATH, RESPONSES = "/v1/conversations", "/v1/responses"
ITEM = {"type": "message", "role": "user", "content": "abc"}


async def begun(http: httpx.AsyncClient, **fields: Any) -> str:
    reply = await http.post(PATH, json=fields)
    assert reply.status_code == 200, reply.text
    return f"{PATH}/{reply.json()['id']}"


async def texts_of(http: httpx.AsyncClient, place: str) -> list[str]:
    listed = (await http.get(f"{place}/items?order=asc&limit=100")).json()["data"]
    return [item["content"][0]["text"] for item in listed]


async def test_a_conversation_is_made_read_labelled_and_deleted(keeping: httpx.AsyncClient):
    place = await begun(keeping, metadata={"a": "b"}, items=[ITEM])
    told = (await keeping.get(place)).json()
    assert (told["object"], told["metadata"]) == ("conversation", {"a": "b"})
    changed = await keeping.post(place, json={"metadata": {"c": "d"}})
    assert changed.json() == {**told, "metadata": {"c": "d"}} == (await keeping.get(place)).json()
    assert (await keeping.delete(place)).json()["object"] == "conversation.deleted"
    for reply in (await keeping.get(place), await keeping.get(f"{place}/items")):
        assert reply.status_code == 404


async def test_items_are_added_listed_read_and_deleted(keeping: httpx.AsyncClient):
    place = await begun(keeping)
    for _ in range(2):  # the same id, as clients that repeat themselves send it
        reply = await keeping.post(f"{place}/items", json={"items": [{**ITEM, "id": "msg_1"}]})
    (added,) = reply.json()["data"]
    newest = (
        await keeping.get(f"{place}/items?limit=1&include=message.output_text.logprobs")
    ).json()
    assert (newest["data"], newest["has_more"]) == ([added], True)
    assert (await keeping.get(f"{place}/items/{added['id']}")).json() == added
    assert (await keeping.delete(f"{place}/items/{added['id']}")).json()["id"] in place
    for reply in (
        await keeping.get(f"{place}/items/{added['id']}"),
        await keeping.delete(f"{place}/items/{added['id']}"),
    ):
        assert reply.status_code == 404
    assert await texts_of(keeping, place) == ["abc"]


async def test_answers_go_on_in_their_conversation(cell: FakeCell, keeping: httpx.AsyncClient):
    place = await begun(keeping, items=[ITEM])
    id = place.rpartition("/")[2]
    for number, name in enumerate((id, {"id": id})):
        body = {"model": "smollm2", "input": "de", "conversation": name, "stream": bool(number)}
        assert (await keeping.post(RESPONSES, json=body)).status_code == 200
    answers = [" 5 6 7 8 9", " 17 18 19 20 21"]
    assert await texts_of(keeping, place) == ["abc", "de", answers[0], "de", answers[1]]
    assert cell.requests[-1].prompt == (
        Message("user", "abc"),
        Message("user", "de"),
        Message("assistant", answers[0]),
        Message("user", "de"),
    )


async def test_an_answer_that_is_not_stored_is_added_too(keeping: httpx.AsyncClient):
    place = await begun(keeping)
    body = {"model": "smollm2", "input": "de", "conversation": place.rpartition("/")[2]}
    told = (await keeping.post(RESPONSES, json={**body, "store": False})).json()
    assert (told["store"], told["conversation"]) == (False, {"id": body["conversation"]})
    assert len(await texts_of(keeping, place)) == 2


@each_case("path, body, param", [
    (PATH, {"items": [{"role": "robot", "content": "x"}]}, "items[0].role"),
    (PATH, {"items": [ITEM] * 21}, "items"),
    (PATH, {"items": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
     "items[0].call_id"),
    (PATH, {"mood": 1}, "mood"),
    (PATH, {"metadata": {"a": "x" * 1000}}, "metadata"),
    (RESPONSES, {"model": "smollm2", "input": "x", "conversation": {"name": "x"}}, "conversation"),
    (RESPONSES, {"model": "smollm2", "input": "x", "conversation": "c",
                 "previous_response_id": "r"}, "conversation"),
    (RESPONSES, {"model": "smollm2", "input": "x", "conversation": "conv_1"}, "conversation"),
])  # fmt: skip
async def test_what_is_wrong_is_refused_by_its_path(
    path: str, body: dict[str, Any], param: str, keeping: httpx.AsyncClient
):
    reply = await keeping.post(path, json=body)
    assert reply.status_code in (400, 404), reply.text
    assert reply.json()["error"]["param"] == param


async def test_without_a_store_or_room_the_flag_is_named(http: httpx.AsyncClient, connect: Connect):
    from sax.storage.object_store import open_store

    assert "--files" in (await http.post(PATH, json={})).json()["error"]["message"]
    full = connect(GatewayConfig(max_key_bytes=1), open_store("memory://"))
    place = await begun(full)
    reply = await full.post(f"{place}/items", json={"items": [ITEM]})
    assert "--max_key_bytes" in reply.json()["error"]["message"]


async def test_openai_s_own_package_keeps_conversations(keeping: httpx.AsyncClient):
    place = "http://gateway/v1"
    sdk = openai.AsyncOpenAI(base_url=place, api_key="x", http_client=keeping)
    begun = await sdk.conversations.create(
        items=[{"type": "message", "role": "user", "content": "abc"}]
    )
    response = await sdk.responses.create(
        model="smollm2", input="de", conversation=begun.id, background=True
    )
    while response.status == "in_progress":
        response = await sdk.responses.retrieve(response.id)
    assert response.output_text == " 5 6 7 8 9"
    items = [item async for item in sdk.conversations.items.list(begun.id, limit=1)]
    assert [item.type for item in items] == ["message"] * 3
    assert (await sdk.conversations.delete(begun.id)).deleted
