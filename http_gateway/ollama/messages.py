"""Converts Ollama's messages to those that a chat template reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict

from http_gateway.bounds import bounded
from http_gateway.images.image_link import joined, read_base64
from http_gateway.openai.chat_schema import to_calls
from http_gateway.openai.tools import object_at
from http_gateway.openai.unsupported import refuse_unsupported
from sax.chat import Content, Message, ToolCall
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

_ROUTE = RequestRoute.OLLAMA_CHAT
ROLES = ("system", "user", "assistant", "tool")
_IMAGE = field(_ROUTE, "messages.images")
# Its images come without a type. The decoder looks at the file itself.
_MEDIA_TYPE = "image/jpeg"


class OllamaTurn(BaseModel):
    """One message as received. null always means the default."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    role: Annotated[str, bounded(_ROUTE, "messages.role")]
    content: Annotated[str, bounded(_ROUTE, "messages.content")] | None = None
    images: Annotated[list[str], bounded(_ROUTE, "messages.images")] | None = None
    thinking: Annotated[str, bounded(_ROUTE, "messages.thinking")] | None = None
    tool_calls: (
        Annotated[list[dict[str, object]], bounded(_ROUTE, "messages.tool_calls")] | None
    ) = None
    tool_name: Annotated[str, bounded(_ROUTE, "messages.tool_name")] | None = None
    tool_call_id: Annotated[str, bounded(_ROUTE, "messages.tool_call_id")] | None = None


def read_ollama_turns(turns: Sequence[OllamaTurn]) -> tuple[Message, ...]:
    """Raises InvalidRequest or UnsupportedParameter naming the part, as in messages[2].role."""
    return tuple(_message(turn, f"messages[{n}].") for n, turn in enumerate(turns))


def _message(turn: OllamaTurn, at: str) -> Message:
    if turn.role not in ROLES:
        raise InvalidRequest(
            f"{at}role {quoted(turn.role)}: use one of {', '.join(ROLES)}", param=f"{at}role"
        )
    refuse_unsupported(turn.model_extra, {}, at=at)
    _check_role(turn, at)
    return Message(
        turn.role,
        with_pictures(turn.images or (), turn.content or "", f"{at}images"),
        name=turn.tool_name or "",
        tool_call_id=turn.tool_call_id or "",
        tool_calls=_calls(turn.tool_calls or (), f"{at}tool_calls"),
        reasoning=turn.thinking or "",
    )


def _check_role(turn: OllamaTurn, at: str) -> None:
    """Raise InvalidRequest for a field of another role."""
    owners = {
        "images": ("user", "tool"),
        "thinking": ("assistant",),
        "tool_calls": ("assistant",),
        "tool_name": ("tool",),
        "tool_call_id": ("tool",),
    }
    for name, roles in owners.items():
        if getattr(turn, name) and turn.role not in roles:
            raise InvalidRequest(
                f"{at}{name} belongs to messages of the role {' or '.join(roles)}: leave it out",
                param=f"{at}{name}",
            )


def with_pictures(images: Sequence[str], text: str, at: str) -> Content:
    """Return a content: images come before the text, as in Ollama's own templates. at: their path.

    Raises InvalidRequest.
    """
    links = [
        read_base64(data, _MEDIA_TYPE, f"{at}[{n}]", f"{at}[{n}]", _IMAGE)
        for n, data in enumerate(images)
    ]
    return joined([*links, text] if text else links)


def _calls(entries: Sequence[object], at: str) -> tuple[ToolCall, ...]:
    """Read calls, whose functions may have a number beside what those of OpenAI have."""
    plain: list[dict[str, Any]] = []
    for n, entry in enumerate(entries):
        call = object_at(entry, f"{at}[{n}]")
        function = object_at(call.get("function"), f"{at}[{n}].function")
        function.pop("index", None)
        plain.append({**call, "function": function})
    return to_calls(plain, at)
