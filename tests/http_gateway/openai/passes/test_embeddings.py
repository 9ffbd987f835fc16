"""/v1/embeddings and vLLM's /pooling over the fake cell.

The vector of an input of size n is [n, 1/2, -1/4].
"""

from __future__ import annotations

import base64
import struct

import httpx
import pytest

from http_gateway.openai.passes.embeddings import to_base64
from sax.errors import InvalidRequest, NotLoaded, PromptTooLong, QueueFull
from sax.passes import ChatInput
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell

PATH = "/v1/embeddings"


async def embed(http: httpx.AsyncClient, **body: object) -> httpx.Response:
    return await http.post(PATH, json={"model": "smollm2", **body})


async def test_a_text_is_answered_byte_for_byte(cell: FakeCell, http: httpx.AsyncClient) -> None:
    answer = await embed(http, input="abcd")
    assert answer.headers["content-type"] == "application/json"
    assert answer.text == (
        '{"object":"list","data":[{"object":"embedding","index":0,"embedding":[4.0,0.5,-0.25]}],'
        '"model":"smollm2","usage":{"prompt_tokens":4,"total_tokens":4}}'
    )
    assert cell.embeds == [("/sax/test/smollm2", ["abcd"])]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (["ab", "c"], ["ab", "c"]),
        ([7, 8, 9], [(7, 8, 9)]),
        ([[7], [8, 9]], [(7,), (8, 9)]),
    ],
)
async def test_the_input_is_texts_or_token_ids(
    cell: FakeCell, http: httpx.AsyncClient, given: object, asked: list[object]
) -> None:
    data = (await embed(http, input=given)).json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(asked)))
    assert cell.embeds[0][1] == asked


async def test_base64_is_little_endian_floats(http: httpx.AsyncClient) -> None:
    answer = await embed(http, input="abcd", encoding_format="base64")
    packed = base64.b64decode(answer.json()["data"][0]["embedding"])
    assert struct.unpack("<3f", packed) == (4.0, 0.5, -0.25)
    assert to_base64([1.0]) == "AACAPw=="


async def test_dimensions_and_prompt_name_reach_the_cell(http: httpx.AsyncClient) -> None:
    answer = await embed(http, input="abcd", dimensions=2, prompt_name="query")
    assert answer.json()["data"][0]["embedding"] == [9.0, 0.5]


@each_case(
    "body, param, says",
    [
        ({"input": "a", "dimensions": 1}, "dimensions", "model's vectors have 3"),
        ({"input": "a", "prompt_name": "x" * 600}, "prompt_name", "at most 512"),
        ({"input": "a", "normalize": True}, "normalize", "not supported"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not supported"),
        ({"input": "a", "imput": "b"}, "imput", "not a known field"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [[]]}, "input", "send text"),
        ({"input": ["a", 7]}, "input", "send text"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({}, "input", "required"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    body: dict[str, object], param: str, says: str, http: httpx.AsyncClient
) -> None:
    answer = await embed(http, **body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


@each_case(
    "failure, status",
    [
        (InvalidRequest("is a language model and does not serve lm.embed", param="model"), 400),
        (
            PromptTooLong("this model's maximum context length is 512 tokens"),
            400,
        ),
        (QueueFull("full", retry_after_s=2), 429),
        (NotLoaded("gone"), 503),
    ],
)
async def test_the_cells_refusals_pass_through(
    failure: InvalidRequest | QueueFull | NotLoaded,
    status: int,
    cell: FakeCell,
    http: httpx.AsyncClient,
) -> None:
    cell.failure = failure
    answer = await embed(http, input="a")
    assert answer.status_code == status
    assert failure.text in answer.json()["error"]["message"]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}}


@each_case("path", (PATH, "/pooling"))
async def test_messages_and_images_are_inputs(
    path: str, cell: FakeCell, http: httpx.AsyncClient
) -> None:
    """Messages are one input, as at vLLM; an empty end of the assistant may stand there."""
    chat = [
        {"role": "system", "content": "Represent it."},
        {"role": "user", "content": [IMAGE, {"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "text", "text": ""}]},
    ]
    body = {"model": "smollm2", "messages": chat, "continue_final_message": True}
    assert len((await http.post(path, json=body)).json()["data"]) == 1
    _, [given] = cell.embeds[-1]
    assert isinstance(given, ChatInput)
    assert [each.role for each in given.messages] == ["system", "user", "assistant"]
    assert [len(image.data) for image in given.messages[1].images] == [6]
    assert given.messages[1].texts == ("hi",)
    inputs = ["a", {"image": IMAGE["image_url"]["url"]}, {"content": [IMAGE]}, IMAGE, {"text": "b"}]
    reply = (await http.post(path, json={"model": "smollm2", "input": inputs})).json()
    assert [each["index"] for each in reply["data"]] == [0, 1, 2, 3, 4]
    assert reply["usage"]["prompt_tokens"] == 1 + 6 + 6 + 6 + 1
    for wrong in ({"input": "a", "messages": chat}, {"messages": []}, {"messages": [{"a": 1}]}):
        assert (await http.post(path, json={"model": "smollm2"} | wrong)).status_code == 400
    unended = {"messages": chat[:2], "continue_final_message": True}
    answer = await http.post(path, json={"model": "smollm2"} | unended)
    assert answer.json()["error"]["param"] == "continue_final_message"


async def test_an_unknown_model_is_not_found(http: httpx.AsyncClient) -> None:
    assert (await embed(http, model="nothing", input="a")).status_code == 404


async def test_tokens_are_counted(http: httpx.AsyncClient) -> None:
    await embed(http, input=["ab", "c"])
    metrics = (await http.get("/metrics")).text
    assert 'sax_gateway_prompt_tokens_total{model="/sax/test/smollm2"} 3.0' in metrics


def test_a_client_that_goes_away_cancels_the_cells_work(cell: FakeCell, live_url: str) -> None:
    cell.hold_after = 0
    timeout = httpx.Timeout(20, read=0.3)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(live_url + PATH, json={"model": "smollm2", "input": "a"}, timeout=timeout)
    assert cell.answer_closed.wait(60)


async def test_vectors_come_in_vllms_format(http: httpx.AsyncClient) -> None:
    body = {"model": "llama", "input": ["a", "bcd"], "task": "embed"}
    reply = (await http.post("/pooling", json=body)).json()
    assert reply["id"].startswith("pool-")
    assert reply["created"] > 0
    assert (reply["object"], reply["model"]) == ("list", "llama")
    assert reply["data"] == [
        {"object": "pooling", "index": 0, "data": [1.0, 0.5, -0.25]},
        {"object": "pooling", "index": 1, "data": [3.0, 0.5, -0.25]},
    ]
    assert reply["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


async def test_they_may_be_base64_and_of_fewer_dimensions(http: httpx.AsyncClient) -> None:
    body = {"model": "llama", "input": "ab", "encoding_format": "base64", "dimensions": 2}
    (entry,) = (await http.post("/pooling", json=body)).json()["data"]
    assert entry["data"] == to_base64([2.0, 0.5])


@each_case("task", ["token_embed", None])
async def test_a_late_interaction_model_has_a_vector_per_token(
    task: str | None, cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.by_token = True
    body = {"model": "llama", "input": ["a", "bc"], "task": task}
    data = (await http.post("/pooling", json=body)).json()["data"]
    assert [each["data"] for each in data] == [[[0.0, 0.5]], [[0.0, 0.5], [1.0, 0.5]]]
    packed = await http.post("/pooling", json=body | {"encoding_format": "base64"})
    assert packed.json()["data"][1]["data"] == to_base64([0.0, 0.5, 1.0, 0.5])


@each_case(
    "by_token, task, data",
    [
        (True, "token_classify", [[[0.1, 0.8, 0.1], [0.9, 0.1, 0.0]]]),
        (False, "classify", [[0.5, 0.5]]),
    ],
)
async def test_pooling_gives_scores_of_classes_too(
    by_token: bool, task: str, data: object, cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.by_token = by_token
    body = {"model": "llama", "input": "Ab", "task": task}
    found = (await http.post("/pooling", json=body)).json()["data"]
    assert [each["data"] for each in found] == data


@each_case(
    "by_token, body, param, says",
    [
        (False, {"task": "token_embed"}, "task", "this model's numbers are of each input"),
        (False, {"task": "token_classify"}, "task", "are of each input"),
        (True, {"task": "classify"}, "task", "are of each token"),
        (True, {"task": "token_classify", "dimensions": 2}, "dimensions", "leave one out"),
    ],
)
async def test_a_task_that_the_model_does_not_do_is_refused(
    by_token: bool,
    body: dict[str, object],
    param: str,
    says: str,
    cell: FakeCell,
    http: httpx.AsyncClient,
) -> None:
    cell.by_token = by_token
    reply = await http.post("/pooling", json={"model": "llama", "input": "ab", **body})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert says in reply.json()["error"]["message"]


async def test_another_way_of_pooling_is_refused_by_name(http: httpx.AsyncClient) -> None:
    reply = await http.post("/pooling", json={"model": "llama", "input": "a", "task": "score"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "task")
