"""Anthropic's replies and stream events: what is encoded, and described in /openapi.json."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import msgspec

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class AnthropicUsage(msgspec.Struct):
    """Tokens of a message; `input_tokens` are those that the prefix cache did not have."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0  # caching needs no request and is not counted


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str = ""


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning; it is not signed."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class AnthropicMessage(msgspec.Struct, tag_field="type", tag="message"):
    """A whole reply."""

    id: str
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: AnthropicUsage
    role: Literal["assistant"] = "assistant"


class TextPiece(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingPiece(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputPiece(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """A piece of a call's input, as JSON."""

    partial_json: str


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: AnthropicMessage


class StreamPing(msgspec.Struct, tag_field="type", tag="ping"):
    pass


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: ContentBlock


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextPiece | ThinkingPiece | InputPiece


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class MessageEnd(msgspec.Struct):
    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: MessageEnd
    usage: AnthropicUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


BlockEvent = BlockStart | BlockDelta | BlockStop
MessageEvent = MessageStart | StreamPing | BlockEvent | MessageDelta | MessageStop


class TokenCount(TypedDict):
    """Tokens of a message's input."""

    input_tokens: int
