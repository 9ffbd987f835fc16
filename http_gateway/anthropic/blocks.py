"""Content blocks of an answer: written as stream events, and collected from them for a whole reply.

So a reply holds what its stream says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from http_gateway.anthropic.reply_types import (
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    ContentBlock,
    InputPiece,
    TextBlock,
    TextPiece,
    ThinkingBlock,
    ThinkingPiece,
    ToolUseBlock,
)
from http_gateway.chats.call_input import call_input
from http_gateway.dialects.events import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    ContentDelta,
    ReasoningDelta,
)


class BlockWriter:
    """Writes the parts of one answer as blocks, one after the other."""

    def __init__(self) -> None:
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
                    yield BlockDelta(self._index, ThinkingPiece(text))
                case CallBegun(_, id, name):
                    yield from self._start(ToolUseBlock(id, name, {}))
                case ArgumentsDelta(_, text):
                    yield BlockDelta(self._index, InputPiece(text))
                case CallEnded():
                    yield from self.stop()

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
