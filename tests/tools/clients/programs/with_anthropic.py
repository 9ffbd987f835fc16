"""anthropic: Anthropic's own client for Python."""

import os

import anthropic

PACKAGE = "anthropic"
_MODEL, _TOOLS_MODEL = os.environ["SAX_CLIENTS_MODEL"], os.environ["SAX_CLIENTS_TOOLS_MODEL"]
_CLIENT = anthropic.Anthropic(base_url=os.environ["SAX_CLIENTS_URL"], api_key="any", max_retries=0)
_FIELDS = {
    "model": _MODEL,
    "max_tokens": 24,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}
_TOOL = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 16}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def messages() -> None:
    """`messages.create` with a system prompt"""
    made = _CLIENT.messages.create(**_FIELDS, system="Be brief.", extra_body={"temperature": 0})
    assert "Paris" in made.content[0].text
    assert made.usage.output_tokens > 0


def stream() -> None:
    """`messages.stream`: the parts add up to the whole"""
    whole = _CLIENT.messages.create(**_FIELDS, extra_body={"temperature": 0})
    with _CLIENT.messages.stream(**_FIELDS, extra_body={"temperature": 0}) as events:
        text = "".join(events.text_stream)
        assert text == whole.content[0].text
        final = events.get_final_message()
        assert final.usage.output_tokens == whole.usage.output_tokens


def tools() -> None:
    """`tools` with a forced call"""
    made = _CLIENT.messages.create(
        **{**_FIELDS, "model": _TOOLS_MODEL, "max_tokens": 80},
        tools=[_TOOL],
        tool_choice={"type": "tool", "name": "get_weather"},
        extra_body={"temperature": 0},
    )
    (call,) = [each for each in made.content if each.type == "tool_use"]
    assert list(call.input) == ["city"]
    assert made.stop_reason == "tool_use"


def count() -> None:
    """`messages.count_tokens`"""
    asked = {name: _FIELDS[name] for name in ("model", "messages")}
    counted = _CLIENT.messages.count_tokens(**asked).input_tokens
    usage = _CLIENT.messages.create(**_FIELDS).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def tool_runner() -> None:
    """`beta.messages.tool_runner` with a thread, which it goes on without"""

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Tells the weather of a city."""
        return f"It rains in {city}."

    runner = _CLIENT.beta.messages.tool_runner(
        **{**_FIELDS, "model": _TOOLS_MODEL, "max_tokens": 80},
        tools=[get_weather],
        max_iterations=2,
    )
    assert all(made.type == "message" for made in runner)


def context_management() -> None:
    """`beta.messages.create` with edits of the context, effort, thinking and cached blocks"""
    made = _CLIENT.beta.messages.create(
        **_FIELDS,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"effort": "low"},
    )
    assert made.context_management.applied_edits == []
    assert made.usage.output_tokens > 0


def models() -> None:
    """`models.list` in pages, and `models.retrieve`"""
    found = {each.id: each for each in _CLIENT.models.list(limit=1)}
    assert {_MODEL, _TOOLS_MODEL} <= found.keys()
    one = found[_MODEL]
    assert (one.type, one.display_name) == ("model", _MODEL.rpartition("/")[2])
    assert one.created_at.year >= 1970


def errors() -> None:
    """`NotFoundError` for an unknown model"""
    try:
        _CLIENT.messages.create(**{**_FIELDS, "model": "none"})
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error"
    else:
        raise AssertionError("an unknown model was not refused")
