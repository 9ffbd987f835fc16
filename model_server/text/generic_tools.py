"""Tools for models whose chat template has no place for them: they are told of in a system text,
calls stand in the text of an answer, and results come as messages of the user. Pure.

The form of calls is the one that the template writes, if it writes calls, and else Hermes', which
most models have seen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from model_server.text.rendering.call_text import call_text
from model_server.text.rendering.frames import WrittenForms
from sax.call_form import HERMES, Arguments, CallForm
from sax.chat import ChatOptions, Content, Image, Message, Tool, ToolChoice

_SYSTEM = """\
You can call functions. Each line describes one, with its parameters as a JSON Schema:
{tools}

To call a function, answer with its name and its arguments, and nothing behind it:
{example}
Several calls may follow each other. Their results come in the next message. {choice}"""
_EXAMPLE = {"parameter": "value"}
_FREE = "If no function helps, answer in words."
_FORCED = "Now you must call a function."


def without_tools(
    chat: Sequence[Message], options: ChatOptions, written: WrittenForms
) -> tuple[tuple[Message, ...], ChatOptions]:
    """Return a chat that says in texts what tools, calls and results say, and its options.

    written: what the template writes. If that is calls, it has them as they are.
    """
    turns = [_told(turn) if written.calls is None else turn for turn in chat]
    joined: list[Message] = []
    for turn, told in zip(chat, turns, strict=True):
        last = joined[-1] if joined else None
        # Many templates want users and assistants to take turns.
        if last is not None and told.role == "user" == last.role and turn.role == "tool":
            joined[-1] = replace(last, content=_joined(last.content, told.content))
        else:
            joined.append(told)
    if options.may_call:
        text = _text(options, written.calls or HERMES)
        joined = _with_system(joined, text, system=written.system)
    return tuple(joined), replace(options, tools=(), tool_choice=ToolChoice.AUTO, tool_name="")


def _text(options: ChatOptions, form: CallForm) -> str:
    tools = "\n".join(map(_described, options.tools))
    choice = _FORCED if options.must_call else _FREE
    example: object = json.dumps(_EXAMPLE)
    if form.arguments not in (Arguments.OBJECT, Arguments.JSON):
        example = {} if form.arguments == Arguments.PYTHON else ""
    call = {"name": "function_name", "arguments": example}
    return _SYSTEM.format(tools=tools, example=call_text(form, [call]), choice=choice)


def _described(tool: Tool) -> str:
    described = f'{{"name": {_dumps(tool.name)}'
    if tool.description:
        described += f', "description": {_dumps(tool.description)}'
    return f'{described}, "parameters": {tool.parameters or "{}"}}}'


def _with_system(chat: list[Message], text: str, *, system: bool) -> list[Message]:
    """Return the chat with a text in its first system message, or in front of the first message."""
    if chat and (chat[0].role == "system" or not system):
        first, *others = chat
        order = (first.content, text) if first.role == "system" else (text, first.content)
        return [replace(first, content=_joined(*order)), *others]
    return [Message("system", text), *chat]


def _told(turn: Message) -> Message:
    if turn.role == "tool":
        named = f" of {turn.name}" if turn.name else ""
        begin, end = f"<tool_response>\nResult{named}: ", "\n</tool_response>"
        if isinstance(turn.content, str):
            return Message("user", begin + turn.content + end)
        return Message("user", (begin, *turn.content, end))
    if not turn.tool_calls:
        return turn
    calls = call_text(
        HERMES, [{"name": c.name, "arguments": c.arguments or "{}"} for c in turn.tool_calls]
    )
    return replace(turn, content=_joined(turn.content, calls, "\n"), tool_calls=())


def _joined(first: Content, second: Content, between: str = "\n\n") -> Content:
    if not first:
        return second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{between}{second}"
    return (*_parts(first), between, *_parts(second))


def _parts(content: Content) -> tuple[str | Image, ...]:
    return (content,) if isinstance(content, str) else content


def _dumps(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
