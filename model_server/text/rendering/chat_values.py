"""Makes the variables of a chat template: messages, tools and options as transformers gives them.

Every text of users is guarded, so that none of it can become a control token.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from model_server.text.rendering.contents import TEXTS, ContentForm
from model_server.text.rendering.sandbox import RefusedChat
from sax.chat import ChatOptions, Message, Tool, ToolCall

Guard = Callable[[str], str]
_NO_PARAMETERS = '{"type": "object", "properties": {}}'


class Arguments(dict[str, Any]):
    """Arguments of a call: an object for templates that go through it, and its JSON for those that
    write it as a text, as both kinds are in use."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: object) -> str:
        return f"{self}{other}"

    def __radd__(self, other: object) -> str:
        return f"{other}{self}"


def chat_values(
    messages: tuple[Message, ...],
    options: ChatOptions,
    guard: Guard,
    form: ContentForm = TEXTS,
) -> dict[str, Any]:
    """Return the variables. Raises RefusedChat for a text that should be JSON and is not.

    form: of the contents that the template takes.
    """
    values = _parsed(options.chat_template_kwargs or "{}", "chat_template_kwargs", guard)
    tools = [_tool(tool, f"tools[{n}]", guard) for n, tool in enumerate(options.tools)]
    return {
        **values,
        "messages": [_turn(each, f"messages[{n}]", guard, form) for n, each in enumerate(messages)],
        "add_generation_prompt": (
            options.add_generation_prompt and not options.continue_final_message
        ),
        "continue_final_message": options.continue_final_message,
        "tools": tools or None,
        "documents": None,
    }


def _turn(message: Message, at: str, guard: Guard, form: ContentForm) -> dict[str, Any]:
    content = form.value(message.content, guard)
    turn: dict[str, Any] = {"role": guard(message.role), "content": content}
    if message.name:
        turn["name"] = guard(message.name)
    if message.tool_call_id:
        turn["tool_call_id"] = guard(message.tool_call_id)
    if message.tool_calls:
        calls = [
            _call(call, f"{at}.tool_calls[{n}]", guard) for n, call in enumerate(message.tool_calls)
        ]
        if form.calls is not None and isinstance(content, str):
            turn["content"] = content + form.calls.text([call["function"] for call in calls])
        else:
            turn["content"] = content or form.without_text
            turn["tool_calls"] = calls
    if message.reasoning:
        # Qwen and DeepSeek, gpt-oss: each family has its own word.
        reasoning = guard(message.reasoning)
        turn |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), reasoning)
    return turn


def _call(call: ToolCall, at: str, guard: Guard) -> dict[str, Any]:
    arguments = Arguments(_parsed(call.arguments or "{}", f"{at}.function.arguments", guard))
    function = {"name": guard(call.name), "arguments": arguments}
    return {"id": guard(call.id), "type": "function", "function": function}


def _tool(tool: Tool, at: str, guard: Guard) -> dict[str, Any]:
    function: dict[str, Any] = {"name": guard(tool.name)}
    if tool.description:
        function["description"] = guard(tool.description)
    source = tool.parameters or _NO_PARAMETERS
    function["parameters"] = _parsed(source, f"{at}.function.parameters", guard)
    return {"type": "function", "function": function}


def _parsed(source: str, at: str, guard: Guard) -> dict[str, Any]:
    """Return a JSON object with guarded texts."""
    try:
        value = json.loads(source)
        if isinstance(value, dict):
            return _guarded(cast("dict[str, Any]", value), guard)
    except (ValueError, RecursionError):
        pass
    raise RefusedChat(f"cannot have these messages: {at} is no JSON object")


def _guarded(value: Any, guard: Guard) -> Any:
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, list):
        return [_guarded(each, guard) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {guard(key): _guarded(each, guard) for key, each in items}
    return value
