"""Converts Anthropic's messages to those that a chat template reads.

Texts, images of users, calls of tools, their results and reasoning are supported; other blocks are
refused by the path of their type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict

from http_gateway.bounds import bounded
from http_gateway.images.image_link import ImageLink, joined, read_base64, read_url
from http_gateway.openai.tools import object_at, read_arguments, read_name
from http_gateway.openai.unsupported import refuse_unsupported
from sax.chat import Content, Image, Message, ToolCall
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

_CONTENT = field(RequestRoute.MESSAGES, "messages.content")
_ID = field(RequestRoute.CHAT, "messages.tool_calls.id")
_PARTS = {
    "system": ("text",),
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
}
# Field of a block -> the values besides null that change nothing
UNCHANGED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "text": {"citations": ([],)},
    "image": {},
    "tool_use": {"caller": ({"type": "direct"},), "toolset_name": ()},
    "tool_result": {"toolset_name": ()},
    "thinking": {},
}
LIFETIMES = ("5m", "1h")
# Type of an image's source -> its fields
SOURCES = {"base64": ("data", "media_type"), "url": ("url",)}

Block = tuple[str, str, dict[str, Any]]  # type, path, further fields


class AnthropicTurn(BaseModel):
    """One message as received; its content is a text or a list of blocks."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    role: Annotated[str, bounded(RequestRoute.MESSAGES, "messages.role")]
    content: Annotated[object, bounded(RequestRoute.MESSAGES, "messages.content")]


def read_system(value: str | list[dict[str, object]] | None) -> tuple[Message, ...]:
    """Return the system prompt as a message, if there is one. Raises InvalidRequest."""
    text = _texts(_blocks(value or "", "system", "system"))
    return (Message("system", text),) if text else ()


def read_turns(turns: Sequence[AnthropicTurn]) -> tuple[Message, ...]:
    """Raises InvalidRequest or UnsupportedParameter naming the part, as in messages[2].role."""
    calls: dict[str, str] = {}
    groups: list[list[Message]] = []
    for number, turn in enumerate(turns):
        for message in _messages_of(turn, f"messages[{number}]", calls):
            if groups and _may_join(groups[-1][-1], message):
                groups[-1].append(message)
            else:
                groups.append([message])
    made = tuple(map(_joined, groups))
    if made and made[-1].tool_calls:
        at = f"messages[{len(turns) - 1}].content"
        raise InvalidRequest(
            f"{at} calls a tool: send its result as a tool_result in a user message", param=at
        )
    return made


def check_cache_control(value: object, at: str) -> None:
    """Raise InvalidRequest unless this is Anthropic's cache_control, which changes nothing: every
    prompt is cached."""
    if value is None:
        return
    fields = object_at(value, at)
    lifetime = fields.pop("ttl", None)
    if fields != {"type": "ephemeral"} or lifetime not in (None, *LIFETIMES):
        raise InvalidRequest(
            f'{at}: send {{"type": "ephemeral"}}, with a ttl of 5m or 1h, or leave it out', param=at
        )


def _messages_of(turn: AnthropicTurn, at: str, calls: dict[str, str]) -> Iterable[Message]:
    """calls: name of each call so far by its id; those of this turn are added."""
    if turn.role not in _PARTS:
        known = ", ".join(_PARTS)
        raise InvalidRequest(
            f"{at}.role {quoted(turn.role)}: use one of {known}", param=f"{at}.role"
        )
    refuse_unsupported(turn.model_extra, {}, at=f"{at}.")
    blocks = _blocks(turn.content, f"{at}.content", turn.role)
    if not blocks:
        raise InvalidRequest(f"{at}.content is empty: send a block", param=f"{at}.content")
    if turn.role == "assistant":
        return [_assistant(blocks, calls)]
    return _user(blocks, turn.role, calls)


def _blocks(content: object, at: str, role: str) -> list[Block]:
    if isinstance(content, str):
        _CONTENT.check_text(content, at)
        return [("text", at, {"text": content})]
    if not isinstance(content, list):
        raise InvalidRequest(f"{at}: send a text or a list of blocks", param=at)
    entries = cast("list[object]", content)
    _CONTENT.check_count(len(entries), at)
    return [_block(entry, f"{at}[{n}]", role) for n, entry in enumerate(entries)]


def _block(entry: object, at: str, role: str) -> Block:
    fields = object_at(entry, at)
    kind = fields.pop("type", None)
    if kind not in _PARTS[role]:
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported here: send {' or '.join(_PARTS[role])} "
            "blocks only",
            param=f"{at}.type",
        )
    check_cache_control(fields.pop("cache_control", None), f"{at}.cache_control")
    own = {name: value for name in _OWN[kind] if (value := fields.pop(name, None)) is not None}
    refuse_unsupported(fields, UNCHANGED[kind], at=f"{at}.")
    return kind, at, own


_OWN = {
    "text": ("text",),
    "image": ("source",),
    "thinking": ("thinking", "signature"),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content", "is_error"),
}


def _text(fields: Mapping[str, object], name: str, at: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{at}.{name}: send a text", param=f"{at}.{name}")
    _CONTENT.check_text(value, f"{at}.{name}")
    return value


def _id(fields: Mapping[str, object], name: str, at: str) -> str:
    value = _text(fields, name, at)
    _ID.check_text(value, f"{at}.{name}")
    return value


def _texts(blocks: Iterable[Block], name: str = "text") -> str:
    return "\n".join(_text(own, name, at) for kind, at, own in blocks if kind == name)


def _assistant(blocks: Sequence[Block], calls: dict[str, str]) -> Message:
    made = tuple(_call(own, at) for kind, at, own in blocks if kind == "tool_use")
    calls.update({call.id: call.name for call in made})
    return Message(
        "assistant", _texts(blocks), tool_calls=made, reasoning=_texts(blocks, "thinking")
    )


def _call(fields: Mapping[str, object], at: str) -> ToolCall:
    given = object_at(fields.get("input"), f"{at}.input")
    name = read_name(fields.get("name"), at)
    return ToolCall(_id(fields, "id", at), name, read_arguments(given, f"{at}.input"))


def _user(blocks: Iterable[Block], role: str, calls: Mapping[str, str]) -> Iterator[Message]:
    """Return results, texts and images in their order; texts and images that follow each other are
    one message."""
    parts: list[str | ImageLink] = []
    for kind, at, own in blocks:
        if kind != "tool_result":
            parts.append(_text(own, "text", at) if kind == "text" else _image(own, at))
            continue
        if parts:
            yield Message(role, joined(parts))
            parts = []
        yield _result(own, at, calls)
    if parts:
        yield Message(role, joined(parts))


def _image(fields: Mapping[str, object], at: str) -> ImageLink:
    source = object_at(fields.get("source"), f"{at}.source")
    kind = source.pop("type", None)
    if not isinstance(kind, str) or kind not in SOURCES:
        raise UnsupportedParameter(
            f"{at}.source.type {quoted(kind)} is not supported: send {' or '.join(SOURCES)}",
            param=f"{at}.source.type",
        )
    own = {name: source.pop(name, None) for name in SOURCES[kind]}
    refuse_unsupported(source, {}, at=f"{at}.source.")
    row = field(RequestRoute.MESSAGES, "messages.content.source")
    if kind == "url":
        return read_url(own["url"], f"{at}.source.url", at, row)
    return read_base64(own["data"], own["media_type"], f"{at}.source.data", at, row)


def _result(fields: Mapping[str, object], at: str, calls: Mapping[str, str]) -> Message:
    id = _id(fields, "tool_use_id", at)
    if id not in calls:
        raise InvalidRequest(
            f"{at}.tool_use_id {quoted(id)} is that of no tool_use before it: send the call, too",
            param=f"{at}.tool_use_id",
        )
    text = _texts(_blocks(fields.get("content", ""), f"{at}.content", "system"))
    failed = fields.get("is_error", False)
    if not isinstance(failed, bool):
        raise InvalidRequest(f"{at}.is_error: send true or false", param=f"{at}.is_error")
    # Chat templates know no failed results, so that the text must say it.
    return Message("tool", f"Error: {text}" if failed else text, calls[id], id)


def _may_join(before: Message, after: Message) -> bool:
    """True for turns that follow each other and are one to Anthropic and to most templates."""
    return before.role == after.role != "tool" and not before.tool_calls


def _joined(group: Sequence[Message]) -> Message:
    if len(group) == 1:
        return group[0]
    parts = [part for each in group for part in _parts_of(each.content) if part != ""]
    reasoning = "\n".join(each.reasoning for each in group if each.reasoning)
    return replace(group[-1], content=joined(parts), reasoning=reasoning)


def _parts_of(content: Content) -> Sequence[str | Image]:
    return (content,) if isinstance(content, str) else content
