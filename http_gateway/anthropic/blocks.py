"""Content blocks of Anthropic's messages: their fields checked, and what a chat template reads of
each.

Blocks of another type are refused by the path of their type, fields that cannot be honoured by
their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from http_gateway.images.image_link import ImageLink, read_base64, read_url
from http_gateway.openai.tools import object_at
from http_gateway.openai.unsupported import refuse_unsupported
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

_CONTENT = field(RequestRoute.MESSAGES, "messages.content")
_SOURCE = field(RequestRoute.MESSAGES, "messages.content.source")
_ID = field(RequestRoute.CHAT, "messages.tool_calls.id")
_TEXT_ONLY = ("text",)
_SHOWN = ("text", "image")
_OF_SERVERS = ("mcp_tool_use", "mcp_tool_result", "mcp_tool_listing")
# Roles, results of tools and documents -> the types of blocks that they hold
PARTS = {
    "system": _TEXT_ONLY,
    "user": (*_SHOWN, "document", "search_result", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use", *_OF_SERVERS),
    "result": (*_SHOWN, "document", "search_result", "tool_reference"),
    "document": _SHOWN,
}
# Field of a block -> the values besides null that change nothing
_UNCITED: Mapping[str, tuple[object, ...]] = {"citations": ({}, {"enabled": False})}
UNCHANGED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "text": {"citations": ([],)},
    "image": {},
    "document": _UNCITED,
    "search_result": _UNCITED,
    "tool_use": {"caller": ({"type": "direct"},), "toolset_name": ()},
    "tool_result": {"toolset_name": ()},
    "tool_reference": {},
    "thinking": {},
    "redacted_thinking": {},
    "mcp_tool_use": {},
    "mcp_tool_result": {},
    "mcp_tool_listing": {},
}
_OWN = {
    "text": ("text",),
    "image": ("source",),
    "document": ("source", "title", "context"),
    "search_result": ("source", "title", "content"),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),  # encrypted for the server that made it: left out
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content", "is_error"),
    "tool_reference": ("tool_name",),
    "mcp_tool_use": ("id", "name", "server_name", "input"),
    "mcp_tool_result": ("tool_use_id", "content", "is_error"),
    "mcp_tool_listing": ("mcp_server_name", "tools"),
}
LIFETIMES = ("5m", "1h")
LONGEST_SCOPE = 64
# Type of an image's source -> its fields
SOURCES = {"base64": ("data", "media_type"), "url": ("url",)}
Part = str | ImageLink


@dataclass(frozen=True, slots=True)
class SentBlock:
    kind: str
    at: str  # its path in the request
    fields: dict[str, Any]  # without those that change nothing

    def text(self, name: str) -> str:
        """Return a text that the block must have. Raises InvalidRequest."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise InvalidRequest(f"{self.at}.{name}: send a text", param=f"{self.at}.{name}")
        _CONTENT.check_text(value, f"{self.at}.{name}")
        return value

    def id(self, name: str) -> str:
        value = self.text(name)
        _ID.check_text(value, f"{self.at}.{name}")
        return value

    def parts(self) -> list[Part]:
        """Return the texts and images that the model reads. Raises InvalidRequest or
        UnsupportedParameter naming the field."""
        match self.kind:
            case "image":
                return [_image(self)]
            case "document":
                return _document(self)
            case "search_result":
                return _search_result(self)
            case "tool_reference":
                return [f"The tool {self.id('tool_name')} can be called now."]
            case _:
                return [self.text("text")]


def read_blocks(content: object, at: str, holder: str) -> list[SentBlock]:
    """Return the blocks of a text or of a list. holder: as in PARTS.

    Raises InvalidRequest or UnsupportedParameter naming the part.
    """
    if isinstance(content, str):
        _CONTENT.check_text(content, at)
        return [SentBlock("text", at, {"text": content})]
    if not isinstance(content, list):
        raise InvalidRequest(f"{at}: send a text or a list of blocks", param=at)
    entries = cast("list[object]", content)
    _CONTENT.check_count(len(entries), at)
    return [_block(entry, f"{at}[{n}]", PARTS[holder]) for n, entry in enumerate(entries)]


def _block(entry: object, at: str, kinds: tuple[str, ...]) -> SentBlock:
    fields = object_at(entry, at)
    kind = fields.pop("type", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported here: send {' or '.join(kinds)} "
            "blocks only",
            param=f"{at}.type",
        )
    check_cache_control(fields.pop("cache_control", None), f"{at}.cache_control")
    own = {name: value for name in _OWN[kind] if (value := fields.pop(name, None)) is not None}
    refuse_unsupported(fields, UNCHANGED[kind], at=f"{at}.")
    return SentBlock(kind, at, own)


def check_cache_control(value: object, at: str) -> None:
    """Raise InvalidRequest unless this is Anthropic's cache_control, which changes nothing: every
    prompt is cached, for as long as there is room, and for its tenant only."""
    if value is None:
        return
    fields = object_at(value, at)
    lifetime, scope = fields.pop("ttl", None), fields.pop("scope", None)
    scoped = scope is None or (isinstance(scope, str) and len(scope) <= LONGEST_SCOPE)
    if fields != {"type": "ephemeral"} or lifetime not in (None, *LIFETIMES) or not scoped:
        raise InvalidRequest(
            f'{at}: send {{"type": "ephemeral"}}, with a ttl of 5m or 1h and a scope, or leave it '
            "out",
            param=at,
        )


def joined_texts(blocks: Iterable[SentBlock], name: str = "text") -> str:
    return "\n".join(block.text(name) for block in blocks if block.kind == name)


def _image(block: SentBlock) -> ImageLink:
    at = block.at
    source = object_at(block.fields.get("source"), f"{at}.source")
    kind = source.pop("type", None)
    if not isinstance(kind, str) or kind not in SOURCES:
        raise UnsupportedParameter(
            f"{at}.source.type {quoted(kind)} is not supported: send {' or '.join(SOURCES)}",
            param=f"{at}.source.type",
        )
    own = {name: source.pop(name, None) for name in SOURCES[kind]}
    refuse_unsupported(source, {}, at=f"{at}.source.")
    if kind == "url":
        return read_url(own["url"], f"{at}.source.url", at, _SOURCE)
    return read_base64(own["data"], own["media_type"], f"{at}.source.data", at, _SOURCE)


def _document(block: SentBlock) -> list[Part]:
    at = f"{block.at}.source"
    source = object_at(block.fields.get("source"), at)
    kind = source.pop("type", None)
    if kind == "text":
        media_type = source.pop("media_type", "text/plain")
        refuse_unsupported({"media_type": media_type}, {"media_type": ("text/plain",)}, at=f"{at}.")
        parts: list[Part] = [SentBlock("text", at, source).text("data")]
        del source["data"]
    elif kind == "content":
        held = read_blocks(source.pop("content", None), f"{at}.content", "document")
        parts = [part for each in held for part in each.parts()]
    else:
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported: files of documents, such as PDF, are not "
            "read here: send their text in a source of the type text or content, or their pages as "
            "image blocks, to a model that sees",
            param=f"{at}.type",
        )
    refuse_unsupported(source, {}, at=f"{at}.")
    return ["\n".join(["<document>", *_named(block, "title", "context")]), *parts, "</document>"]


def _search_result(block: SentBlock) -> list[Part]:
    found = read_blocks(block.fields.get("content"), f"{block.at}.content", "system")
    head = ["<search_result>", *_named(block, "source", "title")]
    return ["\n".join([*head, joined_texts(found), "</search_result>"])]


def _named(block: SentBlock, *names: str) -> list[str]:
    """Return the texts that a block has under these names, each between tags."""
    return [f"<{name}>{block.text(name)}</{name}>" for name in names if name in block.fields]
