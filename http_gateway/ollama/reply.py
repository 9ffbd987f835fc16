"""Ollama's replies to one prompt: whole, or as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from http_gateway.chat_answer import DividedAnswer, Stopwatch, call_input
from http_gateway.openai.logprobs import LEAST_LOGPROB
from http_gateway.openai.reply_schema import Shape
from sax.dialects.events import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    ContentDelta,
    ReasoningDelta,
)
from sax.types import TokenChunk, TokenLogprob


class OllamaFunction(msgspec.Struct):
    name: str
    arguments: dict[str, Any]
    index: int


class OllamaCall(msgspec.Struct):
    id: str
    function: OllamaFunction


class OllamaMessage(msgspec.Struct):
    content: str
    role: Literal["assistant"] = "assistant"
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class OllamaLogprobs(OllamaLogprob):
    """A token of the answer with its rivals."""

    top_logprobs: list[OllamaLogprob] = []


class OllamaReply(msgspec.Struct, kw_only=True):
    """A reply, or a line of one that is streamed; the last line has counts and durations.

    Durations are in nanoseconds: in all, until the cell was asked, until the first token, and from
    then on.
    """

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    schema_violation: str | UnsetType = UNSET  # how it breaks its schema, by what no grammar holds
    logprobs: list[OllamaLogprobs] | UnsetType = UNSET  # of the tokens since the line before


class OllamaChatReply(OllamaReply, kw_only=True):
    message: OllamaMessage


class OllamaTextReply(OllamaReply, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET


class OllamaDetails(TypedDict):
    """Details of a model: what the cell knows of it."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    """A published model; the cell does not record its size."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: NotRequired[str]  # of one that is loaded, with size_vram
    size_vram: NotRequired[int]
    context_length: NotRequired[int]  # if every ready replica tells it


class OllamaModels(TypedDict):
    models: list[OllamaModel]


class OllamaModelInfo(TypedDict):
    """One model; `capabilities` as its replicas tell."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVectors(TypedDict):
    """The vector of each input."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVector(TypedDict):
    embedding: list[float]


class OllamaVersion(TypedDict):
    """The version of Ollama whose API this is, for clients that ask for one; and that of sax."""

    version: str
    server: str


class OllamaProgress(msgspec.Struct):
    """A line of a pull or a create; the last one says success."""

    status: str


_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class AnswerParts:
    """Part of an answer, or all of it. Calls are whole."""

    content: str = ""
    thinking: str = ""
    calls: list[OllamaCall] = field(default_factory=list[OllamaCall])
    logprobs: list[OllamaLogprobs] = field(default_factory=list[OllamaLogprobs])

    def __bool__(self) -> bool:
        return bool(self.content or self.thinking or self.calls)

    def add(self, more: AnswerParts) -> None:
        self.content += more.content
        self.thinking += more.thinking
        self.calls += more.calls
        self.logprobs += more.logprobs


def chat_reply(parts: AnswerParts, **common: Any) -> OllamaReply:
    message = OllamaMessage(
        parts.content, thinking=parts.thinking or UNSET, tool_calls=parts.calls or UNSET
    )
    return OllamaChatReply(message=message, logprobs=parts.logprobs or UNSET, **common)


def text_reply(parts: AnswerParts, **common: Any) -> OllamaReply:
    return OllamaTextReply(
        response=parts.content,
        thinking=parts.thinking or UNSET,
        logprobs=parts.logprobs or UNSET,
        **common,
    )


Form = Callable[..., OllamaReply]  # `chat_reply` or `text_reply`


def now() -> str:
    """Return the time as RFC 3339 has it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def loaded(form: Form, model: str) -> bytes:
    """Return the reply to a request without a prompt, which only loads the model."""
    return _encode(
        form(AnswerParts(), model=model, created_at=now(), done=True, done_reason="load")
    )


class OllamaAnswer:
    """One answer as it comes."""

    def __init__(self, form: Form, model: str, shape: Shape, watch: Stopwatch) -> None:
        """model: as the client wrote it."""
        self.answer = DividedAnswer(shape)
        self._form = form
        self._model = model
        self._watch = watch
        self._whole = AnswerParts()
        self._logprobs: list[OllamaLogprobs] = []  # of tokens whose text is still to come
        self._open: tuple[str, str, list[str]] | None = None  # a call's id, name and arguments
        self._calls = 0

    def add(self, chunk: TokenChunk) -> None:
        """Read a chunk of a whole reply."""
        self._whole.add(self._parts(chunk))

    def body(self) -> bytes:
        return self._last(self._whole)

    def encode(self, chunk: TokenChunk) -> bytes:
        """Return the line of the next chunk of a stream, if it has one."""
        parts = self._parts(chunk)
        if not parts:
            self._logprobs = parts.logprobs
            return b""
        return _encode(self._form(parts, model=self._model, created_at=now(), done=False)) + b"\n"

    def closing(self) -> bytes:
        return self._last(AnswerParts(logprobs=self._logprobs)) + b"\n"

    def _parts(self, chunk: TokenChunk) -> AnswerParts:
        self._watch.token()
        parts = AnswerParts(logprobs=[*self._logprobs, *map(_logprobs, chunk.logprobs)])
        self._logprobs = []
        self._sort(self.answer.read(chunk), parts)
        if chunk.finish_reason:
            self._end_call(parts)
        return parts

    def _sort(self, events: Iterable[AnswerEvent], parts: AnswerParts) -> None:
        for event in events:
            match event:
                case ContentDelta(text):
                    parts.content += text
                case ReasoningDelta(text):
                    parts.thinking += text
                case CallBegun(_, id, name):
                    self._open = id, name, []
                case ArgumentsDelta(_, text) if self._open:
                    self._open[2].append(text)
                case CallEnded():
                    self._end_call(parts)
                case _:
                    pass

    def _end_call(self, parts: AnswerParts) -> None:
        if self._open is None:
            return
        id, name, pieces = self._open
        self._open = None
        function = OllamaFunction(name, call_input("".join(pieces)), self._calls)
        self._calls += 1
        parts.calls.append(OllamaCall(id, function))

    def _last(self, parts: AnswerParts) -> bytes:
        reason: Literal["stop", "length"] = (
            "length" if self.answer.finish_reason == "length" else "stop"
        )
        reply = self._form(
            parts,
            model=self._model,
            created_at=now(),
            done=True,
            done_reason=reason,
            prompt_eval_count=self.answer.prompt_tokens,
            eval_count=self.answer.completion_tokens,
            schema_violation=self.answer.schema_violation or UNSET,
            **self._watch.durations(),
        )
        return _encode(reply)


def _logprobs(entry: TokenLogprob) -> OllamaLogprobs:
    rivals = [OllamaLogprob(*_told(each)) for each in entry.top]
    return OllamaLogprobs(*_told(entry), rivals)


def _told(entry: TokenLogprob) -> tuple[str, float, list[int]]:
    return entry.token, max(entry.logprob, LEAST_LOGPROB), [*entry.token_bytes]
