"""ResponseAnswer: one answer of /v1/responses as it is generated, streamed or not."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec

from http_gateway.mcp import Made, WaitingCall
from http_gateway.openai.divided_text import parser_of
from http_gateway.openai.logprobs import chat_logprobs
from http_gateway.openai.reply_schema import Shape
from http_gateway.openai.responses.conversation import to_conversation
from http_gateway.openai.responses.items import Item, ItemIds
from http_gateway.openai.responses.open_item import (
    MCP_CALL,
    MCP_REQUEST,
    PLAIN_REASONING,
    OpenItem,
    ReasoningStyle,
    ResponseEvent,
    call_made,
)
from http_gateway.openai.responses.tools import CalledTool
from http_gateway.problems import Problem
from sax.dialects.answer_parser import AnswerParser
from sax.dialects.events import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    ContentDelta,
    ReasoningDelta,
)
from sax.mcp import McpOutcome
from sax.types import Message, TokenChunk


class OutputItems:
    """Collects the items of one answer; each change comes out as events."""

    def __init__(
        self, called: Mapping[str, CalledTool], style: ReasoningStyle, ids: ItemIds
    ) -> None:
        """called: the tools, by the names that the model calls them by."""
        self.done: list[Item] = []
        self._ids = ids
        self._called = called
        self._style = style
        self.waits = 0  # calls of MCP servers that wait to be made
        self.stops = False  # there is a call that the client is to make, or to approve
        self._open: OpenItem | None = None
        self._pending: list[Item] = []  # log-probabilities of tokens whose text has not come yet

    @property
    def writing(self) -> str | None:
        """The type of the item that is being written."""
        return self._open.kind if self._open else None

    def add(
        self, events: Iterable[AnswerEvent], logprobs: Iterable[Item] = ()
    ) -> Iterator[ResponseEvent]:
        """logprobs: of the tokens of these events; only the text of messages shows its own."""
        self._pending += logprobs
        for event in events:
            match event:
                case ContentDelta(text):
                    yield from self._text("message", text)
                    continue
                case ReasoningDelta(text):
                    yield from self._text("reasoning", text)
                case CallBegun(_, id, name):
                    yield from self._begin_call(id, name)
                case ArgumentsDelta(_, text):
                    yield from self._item.delta(text)
                case CallEnded():
                    yield from self.end()
            self._pending = []

    def end(self, status: str = "completed") -> Iterator[ResponseEvent]:
        """Close the item that is being written, if one is."""
        if self._open is None:
            return
        item, self._open = self._open, None
        yield from item.ended(status)
        waits = item.kind == MCP_CALL and status == "completed"
        self.waits += waits
        self.stops = self.stops or (item.kind.endswith(("call", "request")) and not waits)
        self.done.append(item.whole("in_progress" if waits else status))

    def made(self, id: str, outcome: McpOutcome) -> list[ResponseEvent]:
        """Take in what a call of an MCP server gave, and tell its end."""
        index = next(n for n, each in enumerate(self.done) if each["id"] == id)
        item = self.done[index] = call_made(self.done[index], outcome)
        self.waits -= 1
        kind = f"response.mcp_call.{item['status']}"
        return [
            {"type": kind, "item_id": item["id"], "output_index": index},
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]

    def first(self, items: Sequence[Item]) -> Iterator[ResponseEvent]:
        """Put whole items before those of the answer: lists of tools, and calls that were
        approved."""
        for index, item in enumerate(items):
            begun = {**item, "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": begun}
            place = {"item_id": item["id"], "output_index": index}
            kind = f"response.{item['type']}"
            for state in ("in_progress", item["status"]):
                yield {"type": f"{kind}.{state}", **place}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
            self.done.append(item)

    def finish(self, status: str) -> Iterator[ResponseEvent]:
        """Close the last item; an answer without any is an empty message."""
        if self._open is None and not self.done:
            yield from self._begin(OpenItem("message", 0))
        if self._pending and self.writing == "message":  # of an end token, which has no text
            yield from self._text("message", "")
        yield from self.end(status)

    def _text(self, kind: str, text: str) -> Iterator[ResponseEvent]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(OpenItem(kind, self._next, style=self._style))
        for event in self._item.delta(text):
            if kind == "message":
                event["logprobs"], self._pending = self._pending, []
                self._item.logprobs += event["logprobs"]
            yield event

    def _begin_call(self, id: str, name: str) -> Iterator[ResponseEvent]:
        tool = self._called.get(name, CalledTool(name))
        kind = "custom_tool_call" if tool.custom else "function_call"
        if tool.server:
            kind = MCP_REQUEST if tool.approval else MCP_CALL
        yield from self._begin(OpenItem(kind, self._next, id, tool))

    def _begin(self, item: OpenItem) -> Iterator[ResponseEvent]:
        yield from self.end()
        self._open, item.id = item, self._ids.new(item.kind)
        yield from item.begun()

    @property
    def _next(self) -> int:
        """The place of the next item, once the one that is being written is done."""
        return len(self.done) + (self._open is not None)

    @property
    def _item(self) -> OpenItem:
        assert self._open is not None, "a delta belongs to an item"
        return self._open


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseItem(TypedDict):
    """A message, reasoning, a call of a tool, or its output."""

    id: str
    type: str
    status: str


class ResponseFault(TypedDict):
    code: str
    message: str


class ResponseBody(TypedDict):
    """An answer, and what was asked for."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[ResponseItem]
    usage: ResponseUsage | None
    # How a finished answer breaks its schema, by what no grammar could hold
    schema_violation: NotRequired[str]
    error: ResponseFault | None
    incomplete_details: dict[str, str] | None
    store: bool
    previous_response_id: str | None
    instructions: str | None
    tools: list[dict[str, Any]]
    metadata: dict[str, str]


class ResponseStreamEvent(TypedDict):
    """An event; its other fields go with its type."""

    type: str
    sequence_number: int
    response: NotRequired[ResponseBody]


class ResponseItemList(TypedDict):
    object: Literal["list"]
    data: list[ResponseItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(TypedDict):
    id: str
    object: Literal["response"]
    deleted: bool


class _Counts(NamedTuple):
    """Tokens of what the model was asked before its calls were made."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


_encode = msgspec.json.Encoder().encode
NO_TOOLS: Mapping[str, CalledTool] = {}


class ResponseAnswer:
    """Reads chunks; a stream writes the events, and a whole reply is what is left at the end."""

    def __init__(
        self,
        head: dict[str, Any],
        shape: Shape,
        called: Mapping[str, CalledTool] = NO_TOOLS,
        style: ReasoningStyle = PLAIN_REASONING,
        first: Sequence[Item] = (),
        ids: ItemIds | None = None,
    ) -> None:
        """head: fields of the response that do not depend on the answer. called: the tools, by the
        names that the model calls them by. first: whole items before those of the answer. ids: for
        its items; None: those of the response from the first one on."""
        self._head = head
        self._shape = shape
        self._first = first
        self._told_items = len(first)  # to the model
        self._before = _Counts()
        self._items = OutputItems(called, style, ids or ItemIds(str(head.get("id"))))
        self._parser: AnswerParser | None = None  # None: the text is all content
        self._begun = False
        self._round_begun = False
        self._round_tokens = 0
        self._held = False  # until its calls are made
        self._sequence = 0
        self._finish_reason: str | None = None
        self._reasoning_tokens = 0
        self._told_tokens = 0
        self._completed_at: int | None = None
        self._violation = ""  # how the answer breaks its schema
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0

    @property
    def finished(self) -> bool:
        return self._finish_reason is not None

    def encode(self, chunk: TokenChunk) -> bytes:
        """Return the events of a chunk; the last event of all is `closing`."""
        return b"".join(map(self._written, self.read(chunk)))

    def encode_made(self, made: Made) -> bytes:
        return b"".join(map(self._written, self.read_made(made)))

    def read_made(self, made: Made) -> list[ResponseEvent]:
        """Take in what calls of MCP servers gave."""
        return [event for id, outcome in made.items() for event in self._items.made(id, outcome)]

    @property
    def waiting(self) -> dict[str, WaitingCall]:
        """The calls of MCP servers that wait to be made, by the ids of their items."""
        return {
            item["id"]: WaitingCall(item["server_label"], item["name"], item["arguments"])
            for item in self._items.done
            if item["type"] == MCP_CALL and item["status"] == "in_progress"
        }

    @property
    def goes_on(self) -> bool:
        """True if the answer goes on once its calls are made."""
        return self._held and not self._items.stops

    def end_round(self) -> tuple[Message, ...]:
        """Return what the model said in this round, and what its calls gave."""
        said, self._told_items = self._items.done[self._told_items :], len(self._items.done)
        return to_conversation("", said)

    def conclude(self, reason: str) -> None:
        """End an answer that does not go on after its calls."""
        self._end(reason)

    def read(self, chunk: TokenChunk) -> list[ResponseEvent]:
        """Take in a chunk."""
        told: list[ResponseEvent] = []
        if self._held:
            self._go_on()
        if not self._begun:
            told += self._begin(chunk)
        if not self._round_begun:
            self._round_begun = True
            self._parser = parser_of(chunk.answer_format, self._shape)
        self._count(chunk)
        told += self._items.add(self._events(chunk), self._shown(chunk))
        self._count_reasoning()
        self._violation = chunk.schema_violation
        if chunk.finish_reason == "stop" and (self._items.waits or self._waiting_last):
            told += self._items.end()
            self._held = True
        elif chunk.finish_reason:
            self._end(chunk.finish_reason)
            told += self._items.finish(self._status)
        return told

    def closing(self) -> bytes:
        """Return the last event, which holds the whole response."""
        return self._written({"type": f"response.{self._status}", "response": self.whole()})

    def failure(self, problem: Problem) -> bytes:
        """Return the last event of a stream that broke."""
        code = "rate_limit_exceeded" if problem.status == 429 else "server_error"
        error = {"code": code, "message": problem.text}
        response = self.whole() | {"status": "failed", "error": error}
        return self._written({"type": "response.failed", "response": response})

    def whole(self) -> dict[str, Any]:
        """Return the response as it is now."""
        cut = self._status == "incomplete"
        return {
            **self._head,
            "status": self._status,
            "completed_at": self._completed_at,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [*self._items.done],
            "usage": self._usage() if self.finished else None,
            **({"schema_violation": self._violation} if self._violation else {}),
        }

    def _end(self, reason: str) -> None:
        self._finish_reason = reason
        self._completed_at = int(time.time()) if self._status == "completed" else None

    @property
    def _status(self) -> str:
        if not self.finished:
            return "in_progress"
        return "incomplete" if self._finish_reason == "length" else "completed"

    def _begin(self, chunk: TokenChunk) -> Iterator[ResponseEvent]:
        self._begun = True
        for kind in ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self.whole()}
        yield from self._items.first(self._first)

    @property
    def _waiting_last(self) -> bool:
        return self._items.writing == MCP_CALL

    def _go_on(self) -> None:
        """Begin to read what the model says after its calls were made."""
        self._held, self._round_begun, self._told_tokens = False, False, 0
        self._before = _Counts(self.prompt_tokens, self.completion_tokens, self.cached_tokens)

    def _events(self, chunk: TokenChunk) -> Iterable[AnswerEvent]:
        if self._parser is None:
            return [ContentDelta(chunk.text)] if chunk.text else []
        events = self._parser.push(chunk.text)
        if not chunk.finish_reason:
            return events
        events += self._parser.finish()
        # The parser ends a call where the text ends, complete or not.
        cut = chunk.finish_reason == "length" and events and isinstance(events[-1], CallEnded)
        return events[:-1] if cut else events

    def _shown(self, chunk: TokenChunk) -> list[Item]:
        if not chunk.logprobs:
            return []
        made: Any = chat_logprobs(chunk.logprobs, self._shape)["content"]
        return made

    def _count(self, chunk: TokenChunk) -> None:
        before = self._before
        if chunk.prompt_tokens:
            self.prompt_tokens = before.prompt + chunk.prompt_tokens
            self.cached_tokens = before.cached + chunk.cached_tokens
        self._round_tokens = chunk.completion_tokens
        self.completion_tokens = before.completion + chunk.completion_tokens

    def _count_reasoning(self) -> None:
        """Count the tokens since the last chunk with a part of the answer, if it is reasoning."""
        if self._items.writing is None:
            return
        if self._items.writing == "reasoning":
            self._reasoning_tokens += self._round_tokens - self._told_tokens
        self._told_tokens = self._round_tokens

    def _usage(self) -> dict[str, Any]:
        return {
            "input_tokens": self.prompt_tokens,
            # Writing to the prefix cache costs nothing here, so no tokens are counted for it.
            "input_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def _written(self, event: ResponseEvent) -> bytes:
        numbered = {**event, "sequence_number": self._sequence}
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(numbered))
