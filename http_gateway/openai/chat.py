"""Converts OpenAI chat messages to the messages a chat template reads.

Only text is supported; other content is refused with the path of the offending part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from http_gateway.openai.schema import ChatMessage, refuse_unsupported
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted
from sax.types import Message

# "developer" is OpenAI's newer word for "system".
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

# Fields of an earlier reply, which clients send back with the conversation.
_NO_OP: dict[str, tuple[object, ...]] = {
    "name": (),
    "refusal": (),
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "tool_calls": ([],),
    "tool_call_id": (),
    "reasoning": (),
    "reasoning_content": (),
}


def to_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Raises InvalidRequest or UnsupportedParameter naming the part, as in messages[2].role."""
    return tuple(_to_message(turn, f"messages[{i}].") for i, turn in enumerate(messages))


def _to_message(turn: ChatMessage, at: str) -> Message:
    if turn.role in ("tool", "function"):
        raise UnsupportedParameter(
            f"{at}role: tools are not supported, so {turn.role} messages are refused",
            param=at + "role",
        )
    if turn.role not in _ROLES:
        known = ", ".join(_ROLES)
        raise InvalidRequest(f"{at}role {quoted(turn.role)}: use one of {known}", param=at + "role")
    refuse_unsupported(turn.model_extra, _NO_OP, at=at)
    return Message(_ROLES[turn.role], _text_of(turn.content, at + "content"))


def _text_of(content: object, at: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequest(f"{at}: send text or a list of text parts", param=at)
    parts = cast("list[object]", content)
    return "\n".join(_part_text(part, f"{at}[{i}]") for i, part in enumerate(parts))


def _part_text(part: object, at: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f'{at}: send {{"type": "text", "text": ...}}', param=at)
    fields = dict(cast("Mapping[str, object]", part))
    kind, text = fields.pop("type", None), fields.pop("text", None)
    if kind != "text":
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported: send text parts only",
            param=f"{at}.type",
        )
    if not isinstance(text, str):
        raise InvalidRequest(f"{at}.text: send a string", param=f"{at}.text")
    field(RequestRoute.CHAT, "messages.content").check_text(text, f"{at}.text")
    refuse_unsupported(fields, {}, at=f"{at}.")
    return text


# For the API's description.
ROLES, UNCHANGED = tuple(_ROLES), _NO_OP
