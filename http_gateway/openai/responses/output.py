"""The items of one answer, and the events that tell how they come about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from http_gateway.dialects.events import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    ContentDelta,
    ReasoningDelta,
)
from http_gateway.openai.responses.items import Item, new_item_id

ResponseEvent = dict[str, Any]  # without its sequence number

_PART = {"message": "output_text", "reasoning": "reasoning_text"}


@dataclass(slots=True)
class OpenItem:
    """An item that is being written."""

    kind: str  # message, reasoning or function_call
    index: int
    call_id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list[str])
    logprobs: list[Item] = field(default_factory=list[Item])
    id: str = ""

    def __post_init__(self) -> None:
        self.id = new_item_id(self.kind)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def place(self) -> dict[str, Any]:
        """The fields by which an event names this item."""
        place: dict[str, Any] = {"item_id": self.id, "output_index": self.index}
        return place if self.kind == "function_call" else {**place, "content_index": 0}

    def part(self) -> Item:
        made: Item = {"type": _PART[self.kind], "text": self.text}
        if self.kind == "message":
            made |= {"annotations": [], "logprobs": list(self.logprobs)}
        return made

    def whole(self, status: str, *, empty: bool = False) -> Item:
        """Return the item. empty: without its parts, as when it is announced."""
        made: Item = {"id": self.id, "type": self.kind, "status": status}
        if self.kind == "function_call":
            return made | {"call_id": self.call_id, "name": self.name, "arguments": self.text}
        content = [] if empty else [self.part()]
        if self.kind == "reasoning":
            return made | {"summary": [], "content": content, "encrypted_content": None}
        return made | {"role": "assistant", "content": content}


class OutputItems:
    """Collects the items of one answer; each change comes out as events."""

    def __init__(self) -> None:
        self.done: list[Item] = []
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
                    yield from self._begin("function_call", call_id=id, name=name)
                case ArgumentsDelta(_, text):
                    yield self._delta("response.function_call_arguments.delta", text)
                case CallEnded():
                    yield from self.end()
            self._pending = []

    def end(self, status: str = "completed") -> Iterator[ResponseEvent]:
        """Close the item that is being written, if one is."""
        if self._open is None:
            return
        item, self._open = self._open, None
        if item.kind == "function_call":
            arguments = {"name": item.name, "arguments": item.text}
            yield {"type": "response.function_call_arguments.done", **item.place, **arguments}
        else:
            part = item.part()
            told = {"text": part["text"]}
            if item.kind == "message":
                told["logprobs"] = part["logprobs"]
            yield {"type": f"response.{part['type']}.done", **item.place, **told}
            yield {"type": "response.content_part.done", **item.place, "part": part}
        whole = item.whole(status)
        self.done.append(whole)
        yield {"type": "response.output_item.done", "output_index": item.index, "item": whole}

    def finish(self, status: str) -> Iterator[ResponseEvent]:
        """Close the last item; an answer without any is an empty message."""
        if self._open is None and not self.done:
            yield from self._begin("message")
        if self._pending and self.writing == "message":  # of an end token, which has no text
            yield from self._text("message", "")
        yield from self.end(status)

    def _text(self, kind: str, text: str) -> Iterator[ResponseEvent]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        event = self._delta(f"response.{_PART[kind]}.delta", text)
        if kind == "message":
            event["logprobs"], self._pending = self._pending, []
            self._item.logprobs += event["logprobs"]
        yield event

    def _begin(self, kind: str, call_id: str = "", name: str = "") -> Iterator[ResponseEvent]:
        yield from self.end()
        item = self._open = OpenItem(kind, len(self.done), call_id, name)
        announced = item.whole("in_progress", empty=True)
        yield {"type": "response.output_item.added", "output_index": item.index, "item": announced}
        if kind != "function_call":
            part = item.part()
            yield {"type": "response.content_part.added", **item.place, "part": part}

    def _delta(self, kind: str, text: str) -> ResponseEvent:
        self._item.texts.append(text)
        return {"type": kind, **self._item.place, "delta": text}

    @property
    def _item(self) -> OpenItem:
        assert self._open is not None, "a delta belongs to an item"
        return self._open
