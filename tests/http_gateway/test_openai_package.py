"""OpenAI's own package as the client, and its types, which know what a reply may be."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import ChatCompletionMessageParam
from openai.types.chat import completion_create_params as chats
from openai.types.responses import Response as SdkResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter, ValidationError

from http_gateway.openai.completions import CompletionRequest
from http_gateway.openai.schema import ChatRequest
from sax.errors import UnsupportedParameter

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "abc"}]


def connect(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_the_openai_package_streams_a_chat_with_usage(live_url: str):
    with connect(live_url) as client:
        stream = client.chat.completions.create(
            model="smollm2", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == " 3 4 5 6 7"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 8


async def test_the_asynchronous_openai_package_streams_a_chat_without_usage(live_url: str):
    async with openai.AsyncOpenAI(base_url=f"{live_url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model="/sax/test/smollm2", messages=MESSAGES, stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == " 3 4 5 6 7"
    assert all(chunk.usage is None for chunk in chunks)


def test_the_openai_package_reads_whole_answers_models_and_logprobs(live_url: str):
    with connect(live_url) as client:
        chat = client.chat.completions.create(
            model="llama", messages=MESSAGES, logprobs=True, top_logprobs=2, n=2, seed=5
        )
        completion = client.completions.create(model="llama", prompt=["a", "bc"], max_tokens=1)
        listed = [model.id for model in client.models.list()]
        one = client.models.retrieve("/sax/test/llama")
    assert [choice.message.content for choice in chat.choices] == [
        " 8 9 10 11 12",
        " 9 10 11 12 13",
    ]
    assert chat.choices[0].logprobs is not None
    assert len(chat.choices[0].logprobs.content or []) == 5
    assert [choice.text for choice in completion.choices] == [" 1", " 2"]
    assert (listed, one.id) == (["/sax/test/smollm2", "/sax/test/llama"], "/sax/test/llama")


def test_the_openai_package_raises_its_own_errors(live_url: str):
    with connect(live_url) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="zzz", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="llama", messages=MESSAGES, verbosity="low")
    assert missing.value.code == "model_not_found"
    assert (refused.value.code, refused.value.param) == (
        "unsupported_parameter",
        "verbosity",
    )


def test_an_answer_of_a_chat_can_be_sent_back_as_it_came(live_url: str):
    with connect(live_url) as client:
        first = client.chat.completions.create(model="llama", messages=MESSAGES)
        message: ChatCompletionMessageParam = first.choices[0].message  # pyright: ignore[reportAssignmentType]
        again = client.chat.completions.create(model="llama", messages=[*MESSAGES, message])
    assert again.choices[0].finish_reason == "stop"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # of its translations
async def test_openais_client_reads_every_format(live_url: str):
    client = openai.AsyncOpenAI(base_url=f"{live_url}/v1", api_key="none")
    file = ("said.wav", b"RIFF" * 31)  # 1.24 s of the fake cell
    audio = client.audio.transcriptions
    plain = await audio.create(model="llama", file=file)
    assert plain.text == "xx transcribe"
    verbose = await audio.create(
        model="llama",
        file=file,
        response_format="verbose_json",
        timestamp_granularities=["segment"],
    )
    assert verbose.segments is not None
    assert [each.start for each in verbose.segments] == [0.0, 1.5]
    assert "-->" in await audio.create(model="llama", file=file, response_format="srt")
    stream = await audio.create(model="llama", file=file, stream=True)
    kinds = [event.type async for event in stream]
    assert kinds == ["transcript.text.delta", "transcript.text.delta", "transcript.text.done"]
    english = await client.audio.translations.create(model="llama", file=file)
    assert english.text == "xx translate"
    await client.close()


def test_the_openai_package_reads_both_encodings(live_url: str) -> None:
    with connect(live_url) as client:
        by_default = client.embeddings.create(model="smollm2", input=["ab", "c"])
        plain = client.embeddings.create(
            model="smollm2", input=["ab", "c"], encoding_format="float", dimensions=3, user="me"
        )
    assert [entry.embedding for entry in by_default.data] == [[2, 0.5, -0.25], [1, 0.5, -0.25]]
    assert plain.data == by_default.data
    assert by_default.usage.prompt_tokens == by_default.usage.total_tokens == 3


async def test_a_reply_and_its_events_are_what_the_sdk_knows(http: httpx.AsyncClient):
    path, asked = "/v1/responses", {"model": "smollm2", "input": "abc"}
    reply = await http.post(path, json=asked)
    SdkResponse.model_validate(reply.json(), strict=False)
    lines = (await http.post(path, json={**asked, "stream": True})).text.split("\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    streamed = [json.loads(each) for each in data]
    for event in streamed:
        TypeAdapter[Any](ResponseStreamEvent).validate_python(event)
    assert streamed[-1]["type"] == "response.completed"
    assert streamed[-1]["response"]["output"][0]["content"][0]["text"] == " 3 4 5 6 7"


def test_every_field_of_the_openai_package_is_declared_or_decided():
    def is_unknown(request: type[ChatRequest | CompletionRequest], name: str) -> bool:
        asked = {"prompt": "x"} if request is CompletionRequest else {"messages": MESSAGES}
        try:
            request.model_validate_json(json.dumps({"model": "m", **asked, name: None})).check()
        except UnsupportedParameter as error:
            return "not a known field" in error.text
        except ValidationError:
            return False  # a required field
        return False

    for request, theirs in ((ChatRequest, chats), (CompletionRequest, completions)):
        fields = theirs.CompletionCreateParamsBase.__annotations__
        assert [name for name in fields if is_unknown(request, name)] == []
