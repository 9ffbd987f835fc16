"""The items of a request as they are kept and listed: in full, each with an id."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

Item = dict[str, Any]

RESPONSE_PREFIX = "resp_"
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


REFERENCE = "item_reference"


def new_item_id(kind: str) -> str:
    return f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"


def output_id(kind: str, response_id: str, index: int) -> str:
    """Return the id of an item of an answer. The response can be told from it."""
    return f"{_PREFIXES[kind]}_{response_id.partition('_')[2]}_{index}"


def response_of(item_id: str) -> str:
    """Return the id of the response that an item is of; "": the id tells none."""
    _, _, rest = item_id.partition("_")
    id, mark, _ = rest.partition("_")
    return f"{RESPONSE_PREFIX}{id}" if mark else ""


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
    made: Item = {"status": "completed", **item, "type": kind}
    made["id"] = item.get("id") or new_item_id(kind)
    if kind == "message" and isinstance(item.get("content"), str):
        made["content"] = [_part(str(item.get("role")), item["content"])]
    return made


def _part(role: str, text: object) -> Item:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}
