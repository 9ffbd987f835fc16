"""openai: OpenAI's own client for Python."""

import asyncio
import json
import os
import time

import openai
from pydantic import BaseModel

PACKAGE = "openai"
MODEL, TOOLS_MODEL = os.environ["SAX_CLIENTS_MODEL"], os.environ["SAX_CLIENTS_TOOLS_MODEL"]
_URL = os.environ["SAX_CLIENTS_URL"] + "/v1"
_CLIENT = openai.OpenAI(base_url=_URL, api_key="any", max_retries=0)
_ASKED = [{"role": "user", "content": "What is the capital of France?"}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 16}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class City(BaseModel):
    name: str
    millions: int


def models() -> None:
    """`models.list`, `models.retrieve`"""
    (found,) = [each for each in _CLIENT.models.list() if each.id == MODEL]
    assert _CLIENT.models.retrieve(found.id).id == MODEL


def chat() -> None:
    """`chat.completions.create`, whole and streamed with its usage"""
    fields = {"model": MODEL, "messages": _ASKED, "temperature": 0, "max_tokens": 24}
    whole = _CLIENT.chat.completions.create(**fields)
    assert "Paris" in whole.choices[0].message.content
    options = {"include_usage": True}
    chunks = list(_CLIENT.chat.completions.create(**fields, stream=True, stream_options=options))
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def completions() -> None:
    """`completions.create` with n, logprobs, stop and a seed"""
    made = _CLIENT.completions.create(
        model=MODEL, prompt="One, two, three,", max_tokens=8, n=2, logprobs=2, stop=["."], seed=1
    )
    assert len(made.choices) == 2
    assert all(len(each.logprobs.top_logprobs[0]) >= 2 for each in made.choices)


def tools() -> None:
    """`tools` with a forced call, whole and streamed"""
    choice = {"type": "function", "function": {"name": "get_weather"}}
    fields = {"model": TOOLS_MODEL, "messages": _ASKED, "tools": [_TOOL], "tool_choice": choice}
    made = _CLIENT.chat.completions.create(**fields, temperature=0, max_tokens=80)
    (call,) = made.choices[0].message.tool_calls
    assert list(json.loads(call.function.arguments)) == ["city"]
    stream = _CLIENT.chat.completions.create(**fields, temperature=0, max_tokens=80, stream=True)
    deltas = [each for chunk in stream for each in chunk.choices[0].delta.tool_calls or []]
    assert "".join(each.function.arguments or "" for each in deltas) == call.function.arguments


def structured() -> None:
    """`chat.completions.parse` with a pydantic model"""
    made = _CLIENT.chat.completions.parse(
        model=MODEL, messages=_ASKED, response_format=City, temperature=0, max_tokens=80
    )
    assert isinstance(made.choices[0].message.parsed, City)


def concurrently() -> None:
    """`AsyncOpenAI`: 16 chats at once"""

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=_URL, api_key="any") as client:
            made = (
                client.chat.completions.create(
                    model=MODEL, messages=_ASKED, temperature=0, max_tokens=12
                )
                for _ in range(16)
            )
            return [each.choices[0].message.content for each in await asyncio.gather(*made)]

    assert all("Paris" in text for text in asyncio.run(ask()))


def errors() -> None:
    """`NotFoundError` and `BadRequestError` with the field's name"""
    for wrong, fields in (
        (openai.NotFoundError, {"model": "none"}),
        (openai.BadRequestError, {"model": MODEL, "temperature": 3}),
    ):
        try:
            _CLIENT.chat.completions.create(messages=_ASKED, **fields)
        except wrong as error:
            assert error.param in ("model", "temperature"), error.body
        else:
            raise AssertionError(f"not refused: {fields}")


def responses() -> None:
    """`responses.create`, whole and streamed"""
    fields = {"model": MODEL, "input": "What is the capital of France?", "temperature": 0}
    whole = _CLIENT.responses.create(**fields, max_output_tokens=24)
    assert "Paris" in whole.output_text
    events = list(_CLIENT.responses.create(**fields, max_output_tokens=24, stream=True))
    deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text


def conversation() -> None:
    """`responses.create` with `previous_response_id`, `retrieve`, `input_items`, `delete`"""
    fields = {"model": MODEL, "temperature": 0, "max_output_tokens": 16}
    first = _CLIENT.responses.create(input="My name is Ada.", **fields)
    assert _CLIENT.responses.retrieve(first.id).output_text == first.output_text
    asked = {"input": "What is my name?", "previous_response_id": first.id}
    second = _CLIENT.responses.create(**asked, **fields)
    assert len(list(_CLIENT.responses.input_items.list(second.id))) == 3
    _CLIENT.responses.delete(first.id)


def batches() -> None:
    """`files.create`, `batches.create`, `retrieve`, `list`, and `files.content` of the output"""
    body = {"model": MODEL, "messages": _ASKED, "temperature": 0, "max_tokens": 16}
    lines = [
        json.dumps({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body})
        for id in ("a", "b")
    ]
    file = _CLIENT.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = _CLIENT.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while batch.status in ("validating", "in_progress", "finalizing"):
        time.sleep(0.2)
        batch = _CLIENT.batches.retrieve(batch.id)
    assert batch.status == "completed", batch
    told = _CLIENT.files.content(batch.output_file_id).text
    answers = [json.loads(line)["response"]["body"] for line in told.splitlines()]
    assert all("Paris" in each["choices"][0]["message"]["content"] for each in answers)
    assert len(answers) == 2
    assert batch.id in [each.id for each in _CLIENT.batches.list()]
