"""/infill of a gateway before a cell whose answers can be worked out by hand."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.llama_cpp import IndentLimit
from sax.errors import ReplicaLost, UnsupportedParameter
from sax.types import TokenChunk
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published


def shown(least: int, *pieces: str) -> tuple[str, bool]:
    limit = IndentLimit(least)
    made = [limit.push(piece, last=n == len(pieces) - 1) for n, piece in enumerate(pieces)]
    return "".join(made), limit.ended


@each_case("least, text, kept, ended", [
    (4, "x = 1\n    y\n\tz\n", "x = 1\n    y", True),  # a tab is one blank
    (4, "x = 1\n    y\n     z", "x = 1\n    y\n     z", False),
    (4, "x\n    ", "x\n    ", False),
    (2, "x\n\n  y", "x", True),
    (1, "x\n y\nz", "x\n y", True),
    (0, "x\n\ny", "x\n\ny", False),
    (3, "", "", False),
])  # fmt: skip
def test_a_text_ends_before_a_line_with_fewer_blanks(
    least: int, text: str, kept: str, ended: bool
) -> None:
    assert shown(least, text) == (kept, ended)
    assert shown(least, *text, "") == (kept, ended)


BODY: dict[str, Any] = {
    "model": "smollm2",
    "input_prefix": "def f():\n",
    "input_suffix": "\n    return x",
}
# As llama.vim sends it, with its numbers
EDITOR: dict[str, Any] = {
    **BODY,
    "id_slot": 0,
    "input_extra": [{"filename": "a.py", "text": "y = 1\n", "time": [1, 2]}],
    "prompt": "    x = ",
    "n_predict": 5,
    "stop": [],
    "n_indent": 0,
    "top_k": 40,
    "top_p": 0.9,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "response_fields": ["content", "timings/prompt_n", "truncated", "mood/x", "tokens_cached"],
}


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(data) for data in re.findall(r"^data: (.*)$", reply.text, re.MULTILINE)]


async def test_the_middle_is_asked_for_with_what_an_editor_sends(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    reply = await http.post("/infill", json=EDITOR)
    prompt = "--- a.py ---\ny = 1\n\n\ndef f():\n    x = "
    text = "".join(f" {len(prompt) + n}" for n in range(5))
    assert reply.json() == {
        "content": text,
        "timings/prompt_n": len(prompt),
        "truncated": False,
        "tokens_cached": 0,
    }
    (request,) = cell.requests
    assert (request.prompt, request.reply.suffix) == (prompt, "\n    return x")
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.top_k, sampling.top_p, sampling.min_p) == (
        5,
        40,
        0.9,
        0.05,
    )
    assert (sampling.temperature, sampling.seed) == (0.8, None)


async def test_a_reply_says_how_the_answer_ended(cell: FakeCell, http: httpx.AsyncClient) -> None:
    cell.said = [
        TokenChunk("x", (1,), prompt_tokens=9, cached_tokens=4, completion_tokens=1),
        TokenChunk("", (), finish_reason="stop", stop_reason="END", completion_tokens=2),
    ]
    body = (await http.post("/infill", json={**BODY, "stop": ["END"], "seed": 3})).json()
    assert (body["content"], body["stop"], body["model"]) == ("x", True, "smollm2")
    assert (body["stop_type"], body["stopping_word"]) == ("word", "END")
    assert (body["tokens_evaluated"], body["tokens_cached"], body["tokens_predicted"]) == (9, 4, 2)
    timings = body["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (4, 5, 2)
    assert cell.requests[0].sampling.seed == 3


async def test_a_stream_says_the_same(cell: FakeCell, http: httpx.AsyncClient) -> None:
    *pieces, last = events_of(await http.post("/infill", json={**EDITOR, "stream": True}))
    whole = (await http.post("/infill", json=EDITOR)).json()["content"]
    assert "".join(piece["content"] for piece in pieces) == whole
    assert not any(piece["stop"] for piece in pieces)
    assert last["content"] == ""
    cell.failure, cell.fail_at = ReplicaLost("gone"), 2
    broken = events_of(await http.post("/infill", json={**BODY, "stream": True}))
    assert broken[-1]["error"]["message"] == "gone"


async def test_an_answer_ends_before_a_line_that_is_indented_less(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.said = [
        TokenChunk("x", (1,), prompt_tokens=9, completion_tokens=1),
        TokenChunk("\n    y", (2,), completion_tokens=2),
        TokenChunk("\n  z", (3,), completion_tokens=3),
        TokenChunk("more", (4,), completion_tokens=4),
    ]
    asked = {**BODY, "n_indent": 4}
    body = (await http.post("/infill", json=asked)).json()
    assert (body["content"], body["stop_type"]) == ("x\n    y", "limit")
    assert body["tokens_predicted"] == 3  # the rest was not waited for
    stream = events_of(await http.post("/infill", json={**asked, "stream": True}))
    assert "".join(event["content"] for event in stream) == "x\n    y"


class EndlessCell(FakeCell):
    """Goes on for ever after what it says."""

    async def generate_to(self, *asked: Any, **named: Any) -> None:
        await super().generate_to(*asked, **named)
        await asyncio.Event().wait()


async def test_the_rest_of_an_answer_that_has_ended_is_not_waited_for() -> None:
    cell = EndlessCell(published("/sax/test/smollm2"))
    cell.said = [TokenChunk("x\ny", (1,), prompt_tokens=9, completion_tokens=1)]
    transport = httpx.ASGITransport(create_app(cell, GatewayConfig()))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://gateway") as http,
        asyncio.timeout(20),
    ):
        reply = await http.post("/infill", json={**BODY, "n_indent": 4})
    assert reply.json()["content"] == "x"


@each_case("side", ["input_prefix", "input_suffix"])
async def test_the_text_on_one_side_of_the_answer_is_enough(
    side: str, cell: FakeCell, http: httpx.AsyncClient
) -> None:
    sides = {"input_prefix": "", "input_suffix": "", "prompt": "", side: "a"}
    reply = await http.post("/infill", json={**BODY, **sides})
    assert reply.status_code == 200, reply.text
    assert cell.requests[-1].prompt + cell.requests[-1].reply.suffix == "a"


async def test_an_editor_may_only_warm_the_cache(cell: FakeCell, http: httpx.AsyncClient) -> None:
    reply = await http.post("/infill", json={**BODY, "n_predict": 0})
    assert reply.json()["content"] == ""
    assert cell.requests[0].sampling.max_tokens == 1


@each_case("fields, word", [
    ({"input_prefix": None}, "input_prefix"),
    ({"input_prefix": "", "input_suffix": ""}, "input_prefix"),
    ({"input_extra": [{"filename": "a"}]}, "input_extra[0]"),
    ({"input_extra": [{"text": "a", "mood": 1}]}, "input_extra[0].mood"),
    ({"mood": 1}, "mood"),
    ({"mirostat": 2}, "mirostat"),
    ({"n_predict": 1.5}, "n_predict"),
    ({"samplers": ["x" * 200]}, "samplers"),
    ({"temperature": -1}, "temperature"),
    ({"model": None}, "model"),  # there are two
])  # fmt: skip
async def test_what_is_wrong_or_not_supported_is_refused(
    fields: dict[str, Any], word: str, http: httpx.AsyncClient
) -> None:
    reply = await http.post("/infill", json={**BODY, **fields})
    assert reply.status_code == 400
    assert word in reply.json()["error"]["message"]


async def test_a_model_without_marks_refuses_under_the_field_s_name(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.failure = UnsupportedParameter("suffix is not supported by this model", param="suffix")
    error = (await http.post("/infill", json=BODY)).json()["error"]
    assert error["param"] == "input_suffix"
    assert error["message"] == "input_suffix is not supported by this model"
