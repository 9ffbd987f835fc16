"""Converts OpenAI chat messages to the messages a chat template reads.

Text, images and sounds of users, calls of tools and their results are supported; other content is
refused with the path of the offending part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from http_gateway.openai.chat_schema import KINDS, to_calls
from http_gateway.openai.content_parts import content_of
from http_gateway.openai.schema import ChatMessage
from http_gateway.openai.unsupported import refuse_unsupported
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted
from sax.types import Message

# "developer" is OpenAI's newer word for "system".
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

# Fields of an earlier reply, which clients send back with the conversation.
_NO_OP: dict[str, tuple[object, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
}
# Fields that only messages of one role have; elsewhere they hold nothing.
_OF_TOOL = ("tool_call_id",)
_OF_ASSISTANT = ("tool_calls", "reasoning", "reasoning_content", "refusal")
_NOTHING: dict[str, tuple[object, ...]] = {name: ([],) for name in (*_OF_TOOL, *_OF_ASSISTANT)}


def to_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Raises InvalidRequest or UnsupportedParameter naming the part, as in messages[2].role."""
    return tuple(_to_message(turn, f"messages[{i}].") for i, turn in enumerate(messages))


def _to_message(turn: ChatMessage, at: str) -> Message:
    if turn.role == "function":
        raise UnsupportedParameter(
            f"{at}role: function is not supported; send results as role tool", param=at + "role"
        )
    if turn.role not in _ROLES:
        known = ", ".join(_ROLES)
        raise InvalidRequest(f"{at}role {quoted(turn.role)}: use one of {known}", param=at + "role")
    extra = dict(turn.model_extra or {})
    own = ("name", *{"tool": _OF_TOOL, "assistant": _OF_ASSISTANT}.get(turn.role, ()))
    fields = {name: value for name in own if (value := extra.pop(name, None)) is not None}
    refuse_unsupported(extra, {**_NO_OP, **_NOTHING}, at=at)
    calls = to_calls(fields.get("tool_calls"), at + "tool_calls", KINDS)
    refusal = _label(fields, "refusal", at)
    none = (calls or refusal) and turn.content in (None, [], "")
    if refusal and not none:
        raise InvalidRequest(
            f"{at}content and {at}refusal are both there: send one of them", param=at + "refusal"
        )
    content = refusal if none else content_of(turn.content, at + "content", turn.role)
    return Message(
        _ROLES[turn.role],
        content,
        name=_label(fields, "name", at),
        tool_call_id=_label(fields, "tool_call_id", at),
        tool_calls=calls,
        reasoning=_label(fields, "reasoning_content", at) or _label(fields, "reasoning", at),
    )


def _label(fields: Mapping[str, object], name: str, at: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise InvalidRequest(f"{at}{name}: send a text", param=at + name)
    field(RequestRoute.CHAT, f"messages.{name}").check_text(value, at + name)
    return value


# For the API's description.
ROLES, UNCHANGED, OF_OTHER_ROLES = tuple(_ROLES), _NO_OP, _NOTHING
