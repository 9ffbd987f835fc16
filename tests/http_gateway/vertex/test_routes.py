"""/predict of Vertex AI: every instance is a chat or a completion of the fake cell."""

from __future__ import annotations

import asyncio

import httpx

from sax.errors import QueueFull
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell

CHAT = {"messages": [{"role": "user", "content": "abc"}]}


async def predict(http: httpx.AsyncClient, *instances: object, **body: object) -> httpx.Response:
    return await http.post("/predict", json={"instances": [*instances], **body})


async def test_instances_become_predictions_in_order(http: httpx.AsyncClient) -> None:
    reply = await predict(
        http,
        {"prompt": "ab", "max_tokens": 2},
        CHAT,
        {"model": "smollm2", "prompt": "a", "max_tokens": 1},
        parameters={"model": "/sax/test/llama", "seed": 10},
    )
    assert reply.status_code == 200, reply.text
    first, chat, last = reply.json()["predictions"]
    assert (first["object"], first["choices"][0]["text"]) == ("text_completion", " 12 13")
    assert chat["object"] == "chat.completion"
    assert chat["choices"][0]["message"]["content"] == " 13 14 15 16 17"
    assert [first["model"], last["model"]] == ["/sax/test/llama", "smollm2"]


async def test_without_a_name_the_only_model_answers(
    http: httpx.AsyncClient, cell: FakeCell
) -> None:
    several = await predict(http, {"prompt": "a"})
    assert (several.status_code, several.json()["error"]["param"]) == (400, "model")
    del cell.models["/sax/test/smollm2"]
    reply = await predict(http, {"prompt": "a"}, CHAT)
    models = {each["model"] for each in reply.json()["predictions"]}
    assert models == {"/sax/test/llama"}


@each_case(
    "body, param",
    [
        ({"instances": []}, "instances"),
        ({}, "instances"),
        ({"instances": {}}, "instances"),
        ({"instances": ["a"]}, "instances"),
        ({"instances": [{}] * 129}, "instances"),
        ({"instances": [{"prompt": "a"}], "parameters": []}, "parameters"),
        ({"instances": [{"prompt": "a"}], "zest": 1}, "zest"),
        ({"instances": [CHAT, {"prompt": "a", "zest": 1}]}, "instances[1].zest"),
        ({"instances": [{"prompt": "a", "temperature": 9}]}, "instances[0].temperature"),
        ({"instances": [{"prompt": "a", "stream": True}]}, "instances[0].stream"),
        ({"instances": [{"messages": [{"role": 1}]}]}, "instances[0].messages[0].role"),
        (
            {"instances": [{"prompt": "a"}], "parameters": {"temperature": 9}},
            "parameters.temperature",
        ),
    ],
)
async def test_what_is_wrong_is_refused_by_its_place(
    body: dict[str, object], param: str, http: httpx.AsyncClient, cell: FakeCell
) -> None:
    cell.models.pop("/sax/test/smollm2", None)
    reply = await http.post("/predict", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_what_is_not_json_is_told(http: httpx.AsyncClient) -> None:
    for body in (b"", b"{", b'{"instances": [{"prompt": \xff}]}'):
        reply = await http.post("/predict", content=body)
        assert reply.status_code == 400
        assert "error" in reply.json()


async def test_an_error_of_the_cell_keeps_its_status_and_ends_the_others(
    http: httpx.AsyncClient, cell: FakeCell
) -> None:
    cell.failure, cell.fail_at = QueueFull("full", retry_after_s=3.0), 0
    instance = {"model": "llama", "prompt": "a"}
    reply = await predict(http, instance, instance)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
    missing = await predict(http, instance, {"model": "nobody", "prompt": "a"})
    assert missing.status_code in (404, 429)
    await asyncio.sleep(0)
    assert cell.open_answers == 0
