"""Anthropic's replies to one message: whole, or as the events of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from http_gateway.anthropic.context_edits import AppliedEdit
from http_gateway.chat_answer import DividedAnswer, call_input
from http_gateway.mcp import Made, WaitingCall
from http_gateway.openai.reply_schema import Shape
from http_gateway.sse import named_event
from sax.dialects.events import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    CollectedAnswer,
    ContentDelta,
    ReasoningDelta,
)
from sax.mcp import McpOutcome
from sax.types import Message, TokenChunk

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class AnthropicUsage(msgspec.Struct):
    """Tokens of a message; `input_tokens` are those that the prefix cache did not have."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    # Every prompt is cached where there is room, asked for or not; how much was, is not counted.
    cache_creation_input_tokens: int = 0


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


class McpToolUseBlock(msgspec.Struct, tag_field="type", tag="mcp_tool_use"):
    """A call of an MCP server's tool, which the gateway makes."""

    id: str
    name: str
    server_name: str
    input: dict[str, Any]


class McpToolResultBlock(msgspec.Struct, tag_field="type", tag="mcp_tool_result"):
    tool_use_id: str
    is_error: bool
    content: list[TextBlock]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock | McpToolUseBlock | McpToolResultBlock
Served = Mapping[str, tuple[str, str]]  # names that the model calls -> MCP server and name there
NONE_SERVED: Served = {}


class ContextManagement(msgspec.Struct):
    """Edits that changed the prompt, if the request has `context_management`."""

    applied_edits: list[AppliedEdit]


class AnthropicMessage(msgspec.Struct, tag_field="type", tag="message"):
    """A whole reply."""

    id: str
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: AnthropicUsage
    role: Literal["assistant"] = "assistant"
    schema_violation: str | UnsetType = UNSET
    context_management: ContextManagement | UnsetType = UNSET


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
    schema_violation: str | UnsetType = UNSET  # how it breaks its schema, by what no grammar holds


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: MessageEnd
    usage: AnthropicUsage
    context_management: ContextManagement | UnsetType = UNSET


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


BlockEvent = BlockStart | BlockDelta | BlockStop
MessageEvent = MessageStart | StreamPing | BlockEvent | MessageDelta | MessageStop


class OriginalTokens(TypedDict):
    """Tokens before the edits of `context_management`."""

    original_input_tokens: int


class TokenCount(TypedDict):
    """Tokens of a message's input."""

    input_tokens: int
    context_management: NotRequired[OriginalTokens]


# Content blocks of an answer: written as stream events, and collected from them for a whole reply.
#
# So a reply holds what its stream says.


class BlockWriter:
    """Writes the parts of one answer as blocks, one after the other."""

    def __init__(self, *, thinking_shown: bool = True, served: Served = NONE_SERVED) -> None:
        """With `thinking_shown` False, blocks of reasoning are empty."""
        self._served = served
        self._thinking_shown = thinking_shown
        self._index = -1
        self._open: type[ContentBlock] | None = None  # of the block that is not stopped

    def write(self, events: Iterable[AnswerEvent]) -> Iterator[BlockEvent]:
        for event in events:
            match event:
                case ContentDelta(text):
                    yield from self._begin(TextBlock)
                    yield BlockDelta(self._index, TextPiece(text))
                case ReasoningDelta(text):
                    yield from self._begin(ThinkingBlock)
                    if self._thinking_shown:
                        yield BlockDelta(self._index, ThinkingPiece(text))
                case CallBegun(_, id, name):
                    yield from self._start(self._call(id, name))
                case ArgumentsDelta(_, text):
                    yield BlockDelta(self._index, InputPiece(text))
                case CallEnded():
                    yield from self.stop()

    def write_result(self, id: str, outcome: McpOutcome) -> Iterator[BlockEvent]:
        """Write what a call of an MCP server gave."""
        told = [TextBlock(outcome.text)]
        yield from self._start(McpToolResultBlock(id, outcome.failed, told))
        yield from self.stop()

    def _call(self, id: str, name: str) -> ToolUseBlock | McpToolUseBlock:
        if name not in self._served:
            return ToolUseBlock(id, name, {})
        server, own = self._served[name]
        return McpToolUseBlock(id, own, server, {})

    def stop(self) -> Iterator[BlockEvent]:
        """Stop the open block, if there is one."""
        if self._open is not None:
            self._open = None
            yield BlockStop(self._index)

    def _begin(self, kind: type[TextBlock | ThinkingBlock]) -> Iterator[BlockEvent]:
        if self._open is not kind:
            yield from self._start(kind())

    def _start(self, block: ContentBlock) -> Iterator[BlockEvent]:
        yield from self.stop()
        self._open = type(block)
        self._index += 1
        yield BlockStart(self._index, block)


class CollectedBlocks:
    """Collects whole blocks from the events of their stream."""

    def __init__(self) -> None:
        self._begun: list[tuple[ContentBlock, list[str]]] = []

    def add(self, event: BlockEvent) -> None:
        match event:
            case BlockStart(_, block):
                self._begun.append((block, []))
            case BlockDelta(index, TextPiece(text) | ThinkingPiece(text) | InputPiece(text)):
                self._begun[index][1].append(text)
            case _:
                pass

    def blocks(self) -> list[ContentBlock]:
        return [_whole(block, "".join(pieces)) for block, pieces in self._begun]


def _whole(block: ContentBlock, text: str) -> ContentBlock:
    match block:
        case TextBlock():
            return TextBlock(text)
        case ThinkingBlock():
            return ThinkingBlock(text)
        case ToolUseBlock(id, name):
            return ToolUseBlock(id, name, call_input(text))
        case McpToolUseBlock(id, name, server):
            return McpToolUseBlock(id, name, server, call_input(text))
        case McpToolResultBlock():
            return block


_encode = msgspec.json.Encoder().encode


class MessageAnswer:
    """One answer as it comes; its model as the client wrote it."""

    def __init__(
        self,
        id: str,
        model: str,
        shape: Shape,
        *,
        max_tokens: int = 0,
        thinking_shown: bool = True,
        context: ContextManagement | UnsetType = UNSET,
        served: Served = NONE_SERVED,
    ) -> None:
        self.answer = DividedAnswer(shape)
        self._served = served
        self._said = CollectedAnswer()  # in this round
        self._results: dict[str, McpOutcome] = {}  # of its calls, by their ids
        self._asks = False  # a call is left to the client
        self.id = id
        self._model = model
        self._max_tokens = max_tokens
        self._context = context
        self._writer = BlockWriter(thinking_shown=thinking_shown, served=served)
        self._collected = CollectedBlocks()
        self._started = False

    def add(self, value: TokenChunk | Made) -> None:
        """Read a chunk of a whole reply, or what calls gave."""
        for event in self._blocks(value):
            self._collected.add(event)

    def body(self) -> bytes:
        message = self._message(self._collected.blocks(), self._end())
        message.context_management = self._context
        return _encode(message)

    def encode(self, value: TokenChunk | Made) -> bytes:
        """Return the events of the next chunk of a stream, or of what calls gave."""
        blocks = self._blocks(value)
        if self._started:
            return _framed(blocks)
        self._started = True
        start = MessageStart(self._message([], MessageEnd(None, None)))
        return _framed((start, StreamPing(), *blocks))

    def closing(self) -> bytes:
        return _framed((MessageDelta(self._end(), self._usage(), self._context), MessageStop()))

    @property
    def completion_tokens(self) -> int:
        return self.answer.completion_tokens

    @property
    def waiting(self) -> dict[str, WaitingCall]:
        """The calls of MCP servers that wait to be made, by their ids."""
        ended = self.answer.finish_reason == "stop" and not isinstance(self.answer.stop_reason, str)
        return {
            call.id: WaitingCall(*self._served[call.name], call.arguments)
            for call in (self._said.message().tool_calls if ended else ())
            if call.name in self._served
        }

    @property
    def goes_on(self) -> bool:
        return not self._asks

    def end_round(self) -> tuple[Message, ...]:
        """Return what the model said in this round, and what its calls gave."""
        said, made = self._said.message(), self._results
        self._said, self._results = CollectedAnswer(), {}
        self.answer.go_on()
        results = (
            Message("tool", made[call.id].told, call.name, call.id)
            for call in said.tool_calls
            if call.id in made
        )
        return (said, *results)

    def conclude(self, reason: str) -> None:
        """End an answer that does not go on after its calls."""
        self.answer.finish_reason = reason

    def _blocks(self, value: TokenChunk | Made) -> list[BlockEvent]:
        if isinstance(value, dict):
            return [event for made in value.items() for event in self._result(*made)]
        parts = self.answer.read(value)
        self._said.add(parts)
        self._asks = self._asks or any(
            isinstance(part, CallBegun) and part.name not in self._served for part in parts
        )
        events = [*self._writer.write(parts)]
        if value.finish_reason:
            events += self._writer.stop()
        return events

    def _result(self, id: str, outcome: McpOutcome) -> Iterator[BlockEvent]:
        self._results[id] = outcome
        return self._writer.write_result(id, outcome)

    def _message(self, content: list[ContentBlock], end: MessageEnd) -> AnthropicMessage:
        return AnthropicMessage(
            self.id,
            self._model,
            content,
            end.stop_reason,
            end.stop_sequence,
            self._usage(),
            schema_violation=end.schema_violation,
        )

    def _end(self) -> MessageEnd:
        said = self.answer.stop_reason
        sequence = said if isinstance(said, str) else None
        violation = self.answer.schema_violation or UNSET
        return MessageEnd(self._stop_reason(sequence), sequence, violation)

    def _stop_reason(self, sequence: str | None) -> StopReason:
        if self.answer.finish_reason == "length":
            full = self.answer.completion_tokens < self._max_tokens
            return "model_context_window_exceeded" if full else "max_tokens"
        if sequence is not None:
            return "stop_sequence"
        return "tool_use" if self._asks else "end_turn"

    def _usage(self) -> AnthropicUsage:
        answer = self.answer
        return AnthropicUsage(
            input_tokens=answer.prompt_tokens - answer.cached_tokens,
            output_tokens=answer.completion_tokens,
            cache_read_input_tokens=answer.cached_tokens,
        )


def _framed(events: Iterable[MessageEvent]) -> bytes:
    return b"".join(
        named_event(str(event.__struct_config__.tag), _encode(event)) for event in events
    )
