"""Overrides of chats: their template, and how the model writes calls and reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sax.chat import ReasoningParser, ToolParser
from sax.errors import InvalidRequest

CHAT_DEFAULTS: Mapping[str, Any] = {
    "CHAT_TEMPLATE": None,  # in Jinja; null: the checkpoint's
    "TOOL_PARSER": None,  # null: as the template tells
    "REASONING_PARSER": None,
}


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """None: as the checkpoint says."""

    template: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None


def parse_chat(values: Mapping[str, Any]) -> ChatSettings:
    """Check the overrides of `CHAT_DEFAULTS`. Raises InvalidRequest."""
    template = values.get("CHAT_TEMPLATE")
    if template is not None and not (isinstance(template, str) and template):
        raise InvalidRequest(
            "CHAT_TEMPLATE must be a text that is not empty, or null",
            param="overrides.CHAT_TEMPLATE",
        )
    return ChatSettings(
        template,
        _one_of("TOOL_PARSER", values, ToolParser),
        _one_of("REASONING_PARSER", values, ReasoningParser),
    )


def _one_of(key: str, values: Mapping[str, Any], known: type[StrEnum]) -> str | None:
    value = values.get(key)
    if value is None or value in [*known]:
        return value
    raise InvalidRequest(
        f"{key} is {value!r}: give one of {', '.join(known)}, or null", param=f"overrides.{key}"
    )
