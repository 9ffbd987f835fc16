"""OpenItem: an item of an answer that is being written, and the events that tell of it."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from http_gateway.openai.custom_tools import CustomInput
from http_gateway.openai.responses.items import Item
from http_gateway.openai.responses.tools import CalledTool
from sax.mcp import McpOutcome

ResponseEvent = dict[str, Any]  # without its sequence number

MCP_CALL, MCP_REQUEST = "mcp_call", "mcp_approval_request"
_SEAL = "sax1."  # begins an encrypted_content of ours


class _TextForm(NamedTuple):
    """Names of a text's part and events."""

    part: str
    text: str
    around: str
    place: str  # name of the number of the part


_MESSAGE = _TextForm(
    "output_text", "response.output_text", "response.content_part", "content_index"
)
_REASONING = _TextForm(
    "reasoning_text", "response.reasoning_text", "response.content_part", "content_index"
)
_SUMMARY = _TextForm(
    "summary_text",
    "response.reasoning_summary_text",
    "response.reasoning_summary_part",
    "summary_index",
)
_CALLS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
    MCP_CALL: ("response.mcp_call_arguments", "arguments"),
    MCP_REQUEST: ("", "arguments"),  # told as a whole
}


def sealed(text: str) -> str:
    """Return reasoning as `encrypted_content`: clients keep it, and need not read it."""
    data = text.encode(errors="surrogatepass")
    return _SEAL + base64.urlsafe_b64encode(data).decode()


def unsealed(content: str) -> str:
    """Return the reasoning of an `encrypted_content`; "" for that of another server."""
    if not content.startswith(_SEAL):
        return ""
    try:
        data = base64.b64decode(content.removeprefix(_SEAL), b"-_", validate=True)
        return data.decode(errors="surrogatepass")
    except (binascii.Error, ValueError):
        return ""


@dataclass(frozen=True, slots=True)
class ReasoningStyle:
    """Which fields of a reasoning item hold the reasoning."""

    summary: bool = False  # as its summary, which clients show; else as its content
    sealed: bool = False  # and as encrypted_content, too


PLAIN_REASONING = ReasoningStyle()


@dataclass(slots=True)
class OpenItem:
    kind: str  # message, reasoning, function_call or custom_tool_call
    index: int
    call_id: str = ""
    tool: CalledTool = CalledTool("")
    style: ReasoningStyle = PLAIN_REASONING
    logprobs: list[Item] = field(default_factory=list[Item])
    id: str = ""  # given when it begins
    _texts: list[str] = field(default_factory=list[str])
    _input: CustomInput | None = None

    def __post_init__(self) -> None:
        if self.kind == "custom_tool_call":
            self._input = CustomInput()

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def _form(self) -> _TextForm:
        if self.kind == "message":
            return _MESSAGE
        return _SUMMARY if self.style.summary else _REASONING

    @property
    def _place(self) -> dict[str, Any]:
        """The fields by which an event names this item."""
        place: dict[str, Any] = {"item_id": self.id, "output_index": self.index}
        return place if self.kind in _CALLS else {**place, self._form.place: 0}

    def begun(self) -> list[ResponseEvent]:
        announced = self.whole("in_progress", empty=True)
        events: list[ResponseEvent] = [
            {"type": "response.output_item.added", "output_index": self.index, "item": announced}
        ]
        if self.kind not in _CALLS:
            events.append(
                {"type": f"{self._form.around}.added", **self._place, "part": self._part()}
            )
        return events

    def delta(self, text: str) -> list[ResponseEvent]:
        """Return the event of a piece of its text, or of a call's arguments; none if it is not
        told yet."""
        if self._input is not None and not (text := self._input.push(text)):
            return []
        self._texts.append(text)
        kind = _CALLS[self.kind][0] if self.kind in _CALLS else self._form.text
        if not kind:
            return []
        return [{"type": f"{kind}.delta", **self._place, "delta": text}]

    def ended(self, status: str) -> list[ResponseEvent]:
        """Return the last events; a call of an MCP server is done once it was made."""
        events = self._call_ended() if self.kind in _CALLS else self._text_ended()
        if self.kind == MCP_CALL:
            return events
        item = self.whole(status)
        done = {"type": "response.output_item.done", "output_index": self.index, "item": item}
        return [*events, done]

    def _text_ended(self) -> list[ResponseEvent]:
        part, form = self._part(), self._form
        told = {"text": part["text"]}
        if self.kind == "message":
            told["logprobs"] = part["logprobs"]
        return [
            {"type": f"{form.text}.done", **self._place, **told},
            {"type": f"{form.around}.done", **self._place, "part": part},
        ]

    def _call_ended(self) -> list[ResponseEvent]:
        kind, name = _CALLS[self.kind]
        if not kind:
            return []
        if self._input is None:
            told = {"name": self.tool.name, name: self.text}
            return [{"type": f"{kind}.done", **self._place, **told}]
        events: list[ResponseEvent] = []
        if rest := self._input.finish():
            self._texts.append(rest)
            events.append({"type": f"{kind}.delta", **self._place, "delta": rest})
        return [*events, {"type": f"{kind}.done", **self._place, name: self.text}]

    def _part(self) -> Item:
        made: Item = {"type": self._form.part, "text": self.text}
        if self.kind == "message":
            made |= {"annotations": [], "logprobs": list(self.logprobs)}
        return made

    def whole(self, status: str, *, empty: bool = False) -> Item:
        """Return the item. empty: without its parts, as when it is announced."""
        made: Item = {"id": self.id, "type": self.kind, "status": status}
        if self.kind in (MCP_CALL, MCP_REQUEST):
            return {**made, **_of_server(self.kind, self.tool, self.text)}
        if self.kind in _CALLS:
            tool = self.tool
            made |= {"call_id": self.call_id, "name": tool.name, _CALLS[self.kind][1]: self.text}
            return made | ({"namespace": tool.namespace} if tool.namespace else {})
        parts = [] if empty else [self._part()]
        if self.kind == "message":
            return made | {"role": "assistant", "content": parts}
        summary, content = (parts, []) if self.style.summary else ([], parts)
        kept = sealed(self.text) if self.style.sealed and not empty else None
        return made | {"summary": summary, "content": content, "encrypted_content": kept}


def _of_server(kind: str, tool: CalledTool, arguments: str) -> Item:
    made: Item = {"server_label": tool.server, "name": tool.name, "arguments": arguments}
    if kind == MCP_CALL:
        made |= {"approval_request_id": None, "output": None, "error": None}
    return made


def call_made(item: Item, outcome: McpOutcome) -> Item:
    """Return a call of an MCP server as it is once it was made."""
    if outcome.failed:
        return {**item, "status": "failed", "output": None, "error": outcome.text}
    return {**item, "status": "completed", "output": outcome.text, "error": None}
