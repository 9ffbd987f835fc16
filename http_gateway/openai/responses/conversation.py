"""Converts the items of /v1/responses to the messages that a chat template reads.

An assistant's message and the calls that follow it are one message of a chat, with the reasoning
before them; outputs of calls are messages of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from http_gateway.images.image_link import ImageLink, check_detail, joined, read_url
from http_gateway.openai.tools import read_arguments, read_name
from http_gateway.openai.unsupported import refuse_unsupported
from sax.chat import Content, Message, ToolCall
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

# "developer" is OpenAI's newer word for "system".
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_PARTS = ("input_text", "output_text", "text")
IMAGE_PART = "input_image"  # of users

# Fields of an earlier reply, which clients send back; `None`: any value.
_OF_ITEM: dict[str, tuple[object, ...]] = {"status": ("completed", "incomplete", "in_progress")}
_OF_PART: dict[str, tuple[object, ...]] = {"annotations": ([],), "logprobs": ([],)}
_OF_REASONING: dict[str, tuple[object, ...]] = {**_OF_ITEM, "encrypted_content": ("",)}
_SINGLE = {"reasoning_text": "content", "summary_text": "summary"}


def to_conversation(
    instructions: str,
    items: Sequence[Mapping[str, object]],
    earlier: Sequence[Mapping[str, object]] = (),
) -> tuple[Message, ...]:
    """Return the messages of a chat. earlier: items of the responses before this one.

    Raises InvalidRequest or UnsupportedParameter naming the part, as in input[2].role.
    """
    made = _ItemReader()
    if instructions:
        made.messages.append(Message("system", instructions))
    for n, item in enumerate(earlier):
        made.add(dict(item), f"previous_response_id[{n}]")
    for n, item in enumerate(items):
        made.add(dict(item), f"input[{n}]")
    made.end_turn()
    return tuple(made.messages)


class _ItemReader:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls: dict[str, str] = {}  # call_id -> name
        self._reasoning: list[str] = []  # that no message has yet
        self._in_turn = False  # the last message is an assistant's, and calls join it

    def add(self, item: dict[str, Any], at: str) -> None:
        kind = item.pop("type", None) or "message"
        read = {
            "message": self._message,
            "function_call": self._call,
            "function_call_output": self._output,
            "reasoning": self._thoughts,
        }.get(kind)
        if read is None:
            raise UnsupportedParameter(
                f"{at}.type {quoted(kind)} is not supported: send message, function_call, "
                "function_call_output and reasoning",
                param=f"{at}.type",
            )
        _text(item.pop("id", None), "id", at)
        read(item, at)

    def end_turn(self) -> None:
        """Keep reasoning that nothing followed as a message without content."""
        if self._reasoning:
            self.messages.append(Message("assistant", "", reasoning=self._taken()))
        self._in_turn = False

    def _message(self, item: dict[str, Any], at: str) -> None:
        role = item.pop("role", None)
        if role not in ROLES:
            known = ", ".join(ROLES)
            raise InvalidRequest(
                f"{at}.role {quoted(role)}: use one of {known}", param=f"{at}.role"
            )
        content = _content(item.pop("content", None), f"{at}.content", images=role == "user")
        refuse_unsupported(item, {**_OF_ITEM, "phase": ()}, at=f"{at}.")
        if role == "assistant":
            self.messages.append(Message(role, content, reasoning=self._taken()))
            self._in_turn = True
            return
        self.end_turn()
        self.messages.append(Message(ROLES[role], content))

    def _call(self, item: dict[str, Any], at: str) -> None:
        id = _text(item.pop("call_id", None), "call_id", at, needed=True)
        name = read_name(item.pop("name", None), at)
        call = ToolCall(id, name, read_arguments(item.pop("arguments", None), f"{at}.arguments"))
        refuse_unsupported(item, _OF_ITEM, at=f"{at}.")
        self._calls[id] = name
        if self._reasoning or not self._in_turn:
            self.messages.append(Message("assistant", "", reasoning=self._taken()))
            self._in_turn = True
        last = self.messages[-1]
        self.messages[-1] = replace(last, tool_calls=(*last.tool_calls, call))

    def _output(self, item: dict[str, Any], at: str) -> None:
        id = _text(item.pop("call_id", None), "call_id", at, needed=True)
        text = _text_content(item.pop("output", None), f"{at}.output")
        refuse_unsupported(item, _OF_ITEM, at=f"{at}.")
        if id not in self._calls:
            raise InvalidRequest(
                f"{at}.call_id {quoted(id)} is the id of no function_call before it: send the "
                "call, too, or previous_response_id",
                param=f"{at}.call_id",
            )
        self.end_turn()
        self.messages.append(Message("tool", text, name=self._calls[id], tool_call_id=id))

    def _thoughts(self, item: dict[str, Any], at: str) -> None:
        for kind, name in _SINGLE.items():
            for n, part in enumerate(_list(item.pop(name, None), f"{at}.{name}")):
                self._reasoning.append(_part(part, f"{at}.{name}[{n}]", (kind,)))
        refuse_unsupported(item, _OF_REASONING, at=f"{at}.")

    def _taken(self) -> str:
        text = "\n".join(self._reasoning)
        self._reasoning.clear()
        return text


def _content(content: object, at: str, *, images: bool) -> Content:
    """Return a text, or parts as those of a chat's message are."""
    if isinstance(content, str) or not images:
        return _text_content(content, at)
    parts = _parts(content, at)
    return joined(
        [
            _image(cast("Mapping[str, object]", part), f"{at}[{n}]")
            if _is_image(part)
            else _part(part, f"{at}[{n}]", (*TEXT_PARTS, IMAGE_PART))
            for n, part in enumerate(parts)
        ]
    )


def _is_image(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    return cast("Mapping[str, object]", part).get("type") == IMAGE_PART


def _text_content(content: object, at: str) -> str:
    """Return a text, or text parts joined."""
    if isinstance(content, str):
        _ROW.check_text(content, at)
        return content
    parts = _parts(content, at)
    return "\n".join(_part(part, f"{at}[{n}]", TEXT_PARTS) for n, part in enumerate(parts))


def _parts(content: object, at: str) -> list[Any]:
    if not isinstance(content, list) or not content:
        raise InvalidRequest(f"{at}: send text or a list of parts", param=at)
    parts = cast("list[Any]", content)
    _ROW.check_count(len(parts), at)
    return parts


def _image(part: Mapping[str, object], at: str) -> ImageLink:
    fields = {name: value for name, value in part.items() if name != "type"}
    url = fields.pop("image_url", None)
    check_detail(fields.pop("detail", None), f"{at}.detail")
    refuse_unsupported(fields, {}, at=f"{at}.")
    row = field(RequestRoute.RESPONSES, "input.content.image_url")
    return read_url(url, f"{at}.image_url", at, row)


def _list(value: object, at: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{at}: send a list of parts", param=at)
    parts = cast("list[object]", value)
    _ROW.check_count(len(parts), at)
    return parts


def _part(part: object, at: str, kinds: Sequence[str]) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f'{at}: send {{"type": "{kinds[0]}", "text": ...}}', param=at)
    fields = dict(cast("Mapping[str, object]", part))
    kind, text = fields.pop("type", None), fields.pop("text", None)
    if kind not in kinds:
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported: send {' or '.join(kinds)}",
            param=f"{at}.type",
        )
    if not isinstance(text, str):
        raise InvalidRequest(f"{at}.text: send a string", param=f"{at}.text")
    _ROW.check_text(text, f"{at}.text")
    if kind == "output_text":  # an answer of ours may have its log-probabilities with it
        fields = {name: value for name, value in fields.items() if name != "logprobs"}
    refuse_unsupported(fields, _OF_PART, at=f"{at}.")
    return text


def _text(value: object, name: str, at: str, *, needed: bool = False) -> str:
    path = f"{at}.{name}"
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or (needed and not value):
        raise InvalidRequest(f"{path}: send a text", param=path)
    field(RequestRoute.RESPONSES, f"input.{name}").check_text(value, path)
    return value


_ROW = field(RequestRoute.RESPONSES, "input.content")
