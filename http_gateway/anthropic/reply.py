"""Anthropic's replies to one message: whole, or as the events of a stream."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from http_gateway.anthropic.blocks import BlockWriter, CollectedBlocks
from http_gateway.anthropic.reply_types import (
    AnthropicMessage,
    AnthropicUsage,
    BlockEvent,
    ContentBlock,
    MessageDelta,
    MessageEnd,
    MessageEvent,
    MessageStart,
    MessageStop,
    StopReason,
    StreamPing,
)
from http_gateway.chats.divided_answer import DividedAnswer
from http_gateway.openai.shape import Shape
from http_gateway.streams.sse import named_event
from sax.types import TokenChunk

_encode = msgspec.json.Encoder().encode


class MessageAnswer:
    """One answer as it comes; its model as the client wrote it."""

    def __init__(self, id: str, model: str, shape: Shape) -> None:
        self.answer = DividedAnswer(shape)
        self.id = id
        self._model = model
        self._writer = BlockWriter()
        self._collected = CollectedBlocks()
        self._started = False

    def add(self, chunk: TokenChunk) -> None:
        """Read a chunk of a whole reply."""
        for event in self._blocks(chunk):
            self._collected.add(event)

    def body(self) -> bytes:
        return _encode(self._message(self._collected.blocks(), self._end()))

    def encode(self, chunk: TokenChunk) -> bytes:
        """Return the events of the next chunk of a stream."""
        blocks = self._blocks(chunk)
        if self._started:
            return _framed(blocks)
        self._started = True
        start = MessageStart(self._message([], MessageEnd(None, None)))
        return _framed((start, StreamPing(), *blocks))

    def closing(self) -> bytes:
        return _framed((MessageDelta(self._end(), self._usage()), MessageStop()))

    def _blocks(self, chunk: TokenChunk) -> list[BlockEvent]:
        events = [*self._writer.write(self.answer.read(chunk))]
        if chunk.finish_reason:
            events += self._writer.stop()
        return events

    def _message(self, content: list[ContentBlock], end: MessageEnd) -> AnthropicMessage:
        return AnthropicMessage(
            self.id, self._model, content, end.stop_reason, end.stop_sequence, self._usage()
        )

    def _end(self) -> MessageEnd:
        said = self.answer.stop_reason
        sequence = said if isinstance(said, str) else None
        return MessageEnd(self._stop_reason(sequence), sequence)

    def _stop_reason(self, sequence: str | None) -> StopReason:
        if self.answer.finish_reason == "length":
            return "max_tokens"
        if sequence is not None:
            return "stop_sequence"
        return "tool_use" if self.answer.called else "end_turn"

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
