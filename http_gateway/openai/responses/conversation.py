"""Converts the items of /v1/responses to the messages that a chat template reads.

An assistant's message and the calls that follow it are one message of a chat, with the reasoning
before them; outputs of calls are messages of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from http_gateway.images.image_link import ImageLink, check_detail, joined, read_url
from http_gateway.openai.content_parts import refuse_file
from http_gateway.openai.custom_tools import custom_call
from http_gateway.openai.responses.open_item import unsealed
from http_gateway.openai.tools import called_name, read_arguments, read_name
from http_gateway.openai.unsupported import refuse_unsupported
from sax.chat import Content, Message, ToolCall
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

# "developer" is OpenAI's newer word for "system".
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_PARTS = ("input_text", "output_text", "text")
REFUSAL_PART = "refusal"  # of assistants
IMAGE_PART = "input_image"  # of users

# Fields of an earlier reply, which clients send back.
_OF_ITEM: dict[str, tuple[object, ...]] = {"status": ("completed", "incomplete", "in_progress")}
_OF_PART: dict[str, tuple[object, ...]] = {"annotations": ([],), "logprobs": ([],)}
# What part of an answer a message is: no template has a word for it.
_OF_MESSAGE: dict[str, tuple[object, ...]] = {**_OF_ITEM, "phase": ("commentary", "final_answer")}
_WITH_ID = ("mcp_call", "mcp_approval_request")
_SINGLE = {"reasoning_text": "content", "summary_text": "summary"}


def to_conversation(
    instructions: str,
    items: Sequence[Mapping[str, object]],
    earlier: Sequence[Mapping[str, object]] = (),
    names: tuple[str, str] = ("input", "previous_response_id"),
) -> tuple[Message, ...]:
    """Return the messages of a chat. earlier: items of the responses before this one. names: of
    the fields that hold the items and the earlier ones.

    Raises InvalidRequest or UnsupportedParameter naming the part, as in input[2].role.
    """
    made = _ItemReader()
    if instructions:
        made.messages.append(Message("system", instructions))
    for n, item in enumerate(earlier):
        made.add(dict(item), f"{names[1]}[{n}]")
    for n, item in enumerate(items):
        made.add(dict(item), f"{names[0]}[{n}]")
    made.end_turn()
    return tuple(made.messages)


class _ItemReader:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls: dict[str, str] = {}  # call_id -> name
        self._results: list[tuple[dict[str, Any], str]] = []  # of calls that a gateway made
        self._requests: dict[str, dict[str, Any]] = {}  # for approval
        self._reasoning: list[str] = []  # that no message has yet
        self._in_turn = False  # the last message is an assistant's, and calls join it

    def add(self, item: dict[str, Any], at: str) -> None:
        kind = item.pop("type", None) or "message"
        read = {
            "message": self._message,
            "function_call": self._call,
            "custom_tool_call": self._custom_call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
            "reasoning": self._thoughts,
            "mcp_call": self._mcp_call,
            "mcp_approval_request": self._mcp_request,
            "mcp_approval_response": self._mcp_response,
            "mcp_list_tools": self._mcp_list,
        }.get(kind)
        if read is None:
            raise UnsupportedParameter(
                f"{at}.type {quoted(kind)} is not supported: send message, reasoning, and calls of "
                "functions and custom tools with their outputs",
                param=f"{at}.type",
            )
        _text(item.get("id"), "id", at)
        if kind not in _WITH_ID:
            item.pop("id", None)
        if kind != "mcp_call":
            self._give_results()
        read(item, at)

    def end_turn(self) -> None:
        """Keep reasoning that nothing followed as a message without content."""
        self._give_results()
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
        content = _content(item.pop("content", None), f"{at}.content", role)
        refuse_unsupported(item, _OF_MESSAGE, at=f"{at}.")
        if role == "assistant":
            self.messages.append(Message(role, content, reasoning=self._taken()))
            self._in_turn = True
            return
        self.end_turn()
        self.messages.append(Message(ROLES[role], content))

    def _call(self, item: dict[str, Any], at: str) -> None:
        id, name = self._called(item, at)
        call = ToolCall(id, name, read_arguments(item.pop("arguments", None), f"{at}.arguments"))
        self._add_call(call, item, at)

    def _custom_call(self, item: dict[str, Any], at: str) -> None:
        id, name = self._called(item, at)
        self._add_call(custom_call(id, name, item.pop("input", None), f"{at}.input"), item, at)

    def _called(self, item: dict[str, Any], at: str) -> tuple[str, str]:
        """Return the id of a call, and the name that the model calls."""
        id = _text(item.pop("call_id", None), "call_id", at, needed=True)
        name, space = read_name(item.pop("name", None), at), item.pop("namespace", None)
        if space is not None:
            name = called_name(name, read_name(space, at))
        return id, name

    def _add_call(self, call: ToolCall, item: dict[str, Any], at: str) -> None:
        refuse_unsupported(item, _OF_ITEM, at=f"{at}.")
        self._calls[call.id] = call.name
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
        """The same reasoning may be there as content, sealed, and as its summary."""
        said = {
            name: [
                _part(part, f"{at}.{name}[{n}]", (kind,))
                for n, part in enumerate(_list(item.pop(name, None), f"{at}.{name}"))
            ]
            for kind, name in _SINGLE.items()
        }
        sealed = _text(item.pop("encrypted_content", None), "encrypted_content", at)
        refuse_unsupported(item, _OF_ITEM, at=f"{at}.")
        kept = unsealed(sealed)
        self._reasoning += said["content"] or ([kept] if kept else said["summary"])

    def _mcp_list(self, item: dict[str, Any], at: str) -> None:
        """A list of tools is no turn: what it lists is among the tools."""

    def _mcp_call(self, item: dict[str, Any], at: str) -> None:
        """Read a call that a gateway made, and what it gave."""
        self._of_server(item, at)
        said = item.get("error") or item.get("output") or ""
        text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        self._results.append(({"call_id": item.get("id"), "output": text}, at))

    def _give_results(self) -> None:
        """Add what calls gave that stand beside each other: the model made them in one turn."""
        given, self._results = self._results, []
        for result, at in given:
            self._output(result, at)

    def _mcp_request(self, item: dict[str, Any], at: str) -> None:
        self._requests[str(item.get("id"))] = item

    def _mcp_response(self, item: dict[str, Any], at: str) -> None:
        """Read what the user said to a request; the call that follows a yes is an item."""
        id, approve = str(item.get("approval_request_id")), item.get("approve")
        if id not in self._requests or not isinstance(approve, bool):
            raise InvalidRequest(
                f"{at}: send approve, true or false, and the approval_request_id of a request that "
                "is there",
                param=f"{at}.approval_request_id",
            )
        if not approve:
            reason = _text(item.get("reason"), "reason", at)
            self._of_server(self._requests[id], at)
            text = f"The user did not approve this call. {reason}".rstrip()
            self._output({"call_id": id, "output": text}, at)

    def _of_server(self, item: Mapping[str, Any], at: str) -> None:
        call = {name: item.get(name) for name in ("name", "arguments")}
        server = item.get("server_label")
        self._call({**call, "call_id": item.get("id"), "namespace": server}, at)

    def _taken(self) -> str:
        text = "\n".join(self._reasoning)
        self._reasoning.clear()
        return text


def _content(content: object, at: str, role: str) -> Content:
    """Return a text, or parts as those of a chat's message are."""
    if isinstance(content, str) or role != "user":
        return _text_content(content, at, (REFUSAL_PART,) if role == "assistant" else ())
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


def _text_content(content: object, at: str, others: Sequence[str] = ()) -> str:
    """Return a text, or text parts joined."""
    if isinstance(content, str):
        _ROW.check_text(content, at)
        return content
    parts = _parts(content, at)
    return "\n".join(
        _part(part, f"{at}[{n}]", (*TEXT_PARTS, *others)) for n, part in enumerate(parts)
    )


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
    kind = fields.pop("type", None)
    name = REFUSAL_PART if kind == REFUSAL_PART else "text"
    text = fields.pop(name, None)
    if kind == "input_file":
        refuse_file(at, "input_text", IMAGE_PART)
    if kind not in kinds:
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported: send {' or '.join(kinds)}",
            param=f"{at}.type",
        )
    if not isinstance(text, str):
        raise InvalidRequest(f"{at}.{name}: send a string", param=f"{at}.{name}")
    _ROW.check_text(text, f"{at}.{name}")
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
