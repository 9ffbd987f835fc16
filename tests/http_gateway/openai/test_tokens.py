"""Text to tokens and back over the fake cell: a token is a character's code point, 1 is a start."""

from __future__ import annotations

import httpx
import pytest

from sax.chat import ChatOptions, Tool
from sax.errors import InvalidRequest
from sax.fields.table import TOKEN_IDS
from tests.each_case import each_case
from tests.http_gateway.fake_cell import CONTEXT, FakeCell

CHAT = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "now"}}


@each_case(
    "asked, tokens",
    [
        ({"prompt": "hi"}, [1, 104, 105]),
        ({"prompt": "hi", "add_special_tokens": True}, [1, 104, 105]),
        ({"prompt": "hi", "add_special_tokens": False}, [104, 105]),
        ({"messages": CHAT}, [104, 105]),
        ({"messages": CHAT, "add_special_tokens": True}, [1, 104, 105]),
        ({"messages": CHAT, "add_generation_prompt": True, "messages2": None}, None),
        ({"messages": CHAT, "add_generation_prompt": True}, [104, 105]),
    ],
)
async def test_a_prompt_is_counted_and_listed(
    asked: dict[str, object], tokens: list[int] | None, http: httpx.AsyncClient
) -> None:
    reply = await http.post("/tokenize", json={"model": "llama", **asked})
    if tokens is None:
        assert reply.status_code == 400
        return
    assert reply.json() == {
        "count": len(tokens),
        "max_model_len": CONTEXT,
        "tokens": tokens,
        "token_strs": None,
    }


@pytest.mark.parametrize("texts", [False, True])
async def test_a_chat_is_rendered_as_its_options_say(
    cell: FakeCell, http: httpx.AsyncClient, texts: bool
):
    options = {
        "tools": [TOOL],
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    body = {"model": "llama", "messages": CHAT, "return_token_strs": texts, **options}
    assert (await http.post("/tokenize", json=body)).status_code == 200
    assert cell.chats == [
        ChatOptions(
            tools=(Tool("now"),),
            chat_template_kwargs='{"enable_thinking": false}',
            add_generation_prompt=False,
            continue_final_message=True,
        )
    ]


async def test_each_token_has_its_text_on_request(http: httpx.AsyncClient) -> None:
    body = {"model": "llama", "prompt": "hé", "return_token_strs": True}
    assert (await http.post("/tokenize", json=body)).json()["token_strs"] == ["<s>", "h", "é"]


async def test_tokens_become_text(http: httpx.AsyncClient) -> None:
    body = {"model": "llama", "tokens": [1, 104, 233]}
    assert (await http.post("/detokenize", json=body)).json() == {"prompt": "<s>hé"}
    body = {"model": "llama", "tokens": []}
    assert (await http.post("/detokenize", json=body)).json() == {"prompt": ""}


async def test_without_a_name_the_only_model_answers(
    http: httpx.AsyncClient, cell: FakeCell
) -> None:
    several = await http.post("/tokenize", json={"prompt": "hi"})
    assert several.status_code == 400
    assert several.json()["error"]["param"] == "model"
    assert "/sax/test/llama, /sax/test/smollm2" in several.json()["error"]["message"]
    del cell.models["/sax/test/llama"]
    assert (await http.post("/tokenize", json={"prompt": "hi"})).json()["count"] == 3
    assert (await http.post("/detokenize", json={"tokens": [104]})).json() == {"prompt": "h"}
    cell.models.clear()
    none = await http.post("/tokenize", json={"model": "x", "prompt": "hi"})
    assert none.status_code == 404
    assert (await http.post("/tokenize", json={"prompt": "hi"})).status_code == 404


@each_case(
    "path, body, param",
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": CHAT}, "prompt"),
        ("/tokenize", {"prompt": ""}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"messages": CHAT, "add_generation_prompt": 1}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "tools": [TOOL]}, "tools"),
        ("/tokenize", {"messages": CHAT, "tools": [{"type": "x"}]}, "tools[0].type"),
        ("/tokenize", {"messages": CHAT, "chat_template": "x"}, "chat_template"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**31]}, "tokens[0]"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1] * (TOKEN_IDS + 1)}, "tokens"),
        ("/detokenize", {"tokens": [1], "zest": 1}, "zest"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    path: str, body: dict[str, object], param: str, http: httpx.AsyncClient
) -> None:
    reply = await http.post(path, json={"model": "llama", **body})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_what_the_cell_refuses_is_told(http: httpx.AsyncClient, cell: FakeCell) -> None:
    cell.failure = InvalidRequest("tokens is token 9: give ids from 0 to 5", param="tokens")
    reply = await http.post("/detokenize", json={"model": "llama", "tokens": [9]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tokens")
