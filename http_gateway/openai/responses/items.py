"""The items of a request as they are kept and listed: in full, each with an id."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

Item = dict[str, Any]

RESPONSE = "resp_"  # begins the ids of responses
_DIGITS = 4

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
}


def new_item_id(kind: str) -> str:
    return f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"


class ItemIds:
    """Makes the ids of the items that a response puts out: each tells its response."""

    def __init__(self, response_id: str) -> None:
        self._stem = response_id.removeprefix(RESPONSE)
        self._made = 0

    def new(self, kind: str) -> str:
        self._made += 1
        return f"{_PREFIXES[kind]}_{self._stem}{self._made:0{_DIGITS}x}"


def response_of(item_id: str) -> str:
    """Return the id of the response that put an item out; of another id, one of no response."""
    return RESPONSE + item_id.partition("_")[2][:-_DIGITS]


def listed(given: str | Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
    """Return the items that a request's `input` stands for; a text is a user's message."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def to_items(given: Sequence[Mapping[str, object]]) -> list[Item]:
    """Return items in full. They must have been checked."""
    return [_whole(item) for item in given]


def to_new_items(given: Sequence[Mapping[str, object]]) -> list[Item]:
    """Return items in full, under ids that no others have. They must have been checked."""
    return [_whole({**item, "id": None}) for item in given]


def _whole(item: Mapping[str, object]) -> Item:
    kind = str(item.get("type") or "message")
    made: Item = {**item, "type": kind}
    made["id"] = item.get("id") or new_item_id(kind)
    made["status"] = item.get("status") or "completed"  # clients send null for what they lack
    if kind == "message" and isinstance(item.get("content"), str):
        made["content"] = [_part(str(item.get("role")), item["content"])]
    return made


def _part(role: str, text: object) -> Item:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}
