"""litellm: one call for the servers of many makers, and a proxy's routes."""

import asyncio
import json
import os

import litellm

PACKAGE = "litellm"
_URL = os.environ["SAX_CLIENTS_URL"]
_MODEL, _TOOLS_MODEL = os.environ["SAX_CLIENTS_MODEL"], os.environ["SAX_CLIENTS_TOOLS_MODEL"]
_ASKED = [{"role": "user", "content": "What is the capital of France?"}]
_FIELDS = {"temperature": 0, "max_tokens": 24, "api_key": "any", "num_retries": 0}
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
litellm.telemetry = False


def _ask(provider: str, path: str = "/v1", **fields: object) -> object:
    made = {"model": f"{provider}/{_MODEL}", "messages": _ASKED, "api_base": _URL + path}
    return litellm.completion(**{**made, **_FIELDS, **fields})


def chat() -> None:
    """`completion` of `openai/` and `hosted_vllm/` models"""
    for provider in ("openai", "hosted_vllm"):
        assert "Paris" in _ask(provider).choices[0].message.content


def stream() -> None:
    """`completion` streamed with its usage"""
    chunks = list(_ask("openai", stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == _ask("openai").choices[0].message.content
    assert litellm.stream_chunk_builder(chunks).usage.completion_tokens > 0


def at_once() -> None:
    """`acompletion`: 8 at once"""

    async def ask() -> list[str]:
        fields = {"model": f"openai/{_MODEL}", "messages": _ASKED, "api_base": f"{_URL}/v1"}
        made = (litellm.acompletion(**fields, **_FIELDS) for _ in range(8))
        return [each.choices[0].message.content for each in await asyncio.gather(*made)]

    assert all("Paris" in text for text in asyncio.run(ask()))


def text() -> None:
    """`text_completion`"""
    made = litellm.text_completion(
        model=f"text-completion-openai/{_MODEL}",
        prompt="The capital of France is",
        api_base=f"{_URL}/v1",
        **_FIELDS,
    )
    assert "Paris" in made.choices[0].text


def tools() -> None:
    """`completion` with a forced tool call"""
    choice = {"type": "function", "function": {"name": "get_weather"}}
    model = f"openai/{_TOOLS_MODEL}"
    made = _ask("openai", model=model, tools=[_TOOL], tool_choice=choice, max_tokens=80)
    (call,) = made.choices[0].message.tool_calls
    assert list(json.loads(call.function.arguments)) == ["city"]


def structured() -> None:
    """`completion` with `response_format` of a JSON schema"""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 16}},
        "required": ["name"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    made = _ask("openai", response_format=form, max_tokens=60)
    assert list(json.loads(made.choices[0].message.content)) == ["name"]


def errors() -> None:
    """`BadRequestError` and `NotFoundError`"""
    for wrong, fields in (
        (litellm.BadRequestError, {"temperature": 3}),
        (litellm.NotFoundError, {"model": "openai/none"}),
    ):
        try:
            _ask("openai", **fields)
        except wrong:
            continue
        raise AssertionError(f"not refused: {fields}")


def anthropic_messages() -> None:
    """`completion` of an `anthropic/` model"""
    assert "Paris" in _ask("anthropic", path="").choices[0].message.content


def ollama() -> None:
    """`completion` of an `ollama_chat/` model"""
    assert "Paris" in _ask("ollama_chat", path="").choices[0].message.content
