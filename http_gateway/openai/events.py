"""OpenAI's stream events: token chunks to server-sent events.

Everything in an event except its text is encoded once per choice, so that a streamed token costs
one JSON string and one join.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from http_gateway.openai.divided_text import Delta, Deltas, finish_of, parser_of
from http_gateway.openai.logprobs import chat_logprobs
from http_gateway.openai.reply import Head, Usage, usage_of, weights_of
from http_gateway.openai.reply_schema import Shape
from http_gateway.sse import DONE, event
from sax.dialects.answer_parser import AnswerParser
from sax.types import TokenChunk

_encode = msgspec.json.Encoder().encode


class Events:
    """Encodes the chunks of one streamed choice and keeps its token counts."""

    def __init__(self, head: Head, kind: str, index: int, shape: Shape) -> None:
        opening = _encode(head.fields(kind)).removesuffix(b"}")
        self._before = b'data: %b,"choices":[{"index":%d,' % (opening, index)
        self._after = b'}],"usage":null}\n\n' if shape.include_usage else b"}]}\n\n"
        self._shape = shape
        self._last: TokenChunk | None = None
        self._seed: int | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0

    @property
    def completion_tokens(self) -> int:
        return self._last.completion_tokens if self._last else 0

    @property
    def reasoning_tokens(self) -> int:
        return self._last.reasoning_tokens if self._last else 0

    @property
    def finished(self) -> bool:
        return self._last is not None and self._last.finish_reason is not None

    def _seen(self, chunk: TokenChunk) -> bool:
        """Record the counts. True when the chunk is plain text in the middle of a stream."""
        first, self._last = self._last is None, chunk
        if chunk.prompt_tokens:
            self.prompt_tokens = chunk.prompt_tokens
            self.cached_tokens = chunk.cached_tokens
        if first:
            self._seed = chunk.seed
        plain = self._shape.plain_events
        return plain and not (first or chunk.logprobs or chunk.finish_reason)

    def _event(self, *parts: bytes, chunk: TokenChunk, top: bytes = b"") -> bytes:
        """top: fields of the event beside its choice."""
        after = self._after
        if self._shape.continuous_usage:
            made, reasoned = chunk.completion_tokens, chunk.reasoning_tokens
            counts = usage_of(self.prompt_tokens, made, self.cached_tokens, reasoned)
            after = b'}],"usage":%b}\n\n' % _encode(counts)
        if top:
            after = b"}]," + top + after.removeprefix(b"}]")
        return b"".join((self._before, *parts, after))

    def _ending(self, chunk: TokenChunk) -> bytes:
        """Return the reason that the choice ended for, and beside it what else is known then."""
        finish = b',"finish_reason":' + _encode(chunk.finish_reason)
        if not chunk.finish_reason:
            return finish
        told = _encode(chunk.stop_reason), _encode(self._seed)
        finish += b',"stop_reason":%b,"seed":%b' % told
        if chunk.schema_violation:
            finish += b',"schema_violation":' + _encode(chunk.schema_violation)
        if chunk.weights:
            finish += b',"weights":' + _encode(weights_of(chunk))
        if chunk.routed_experts is not None:
            finish += b',"routed_experts":' + _encode(chunk.routed_experts.as_json())
        return finish

    def _token_ids(self, chunk: TokenChunk) -> bytes:
        if not self._shape.token_ids:
            return b""
        return b',"token_ids":' + _encode(chunk.token_ids)

    def _prompt_ids(self, chunk: TokenChunk) -> bytes:
        if not chunk.prompt_token_ids:
            return b""
        return b',"prompt_token_ids":' + _encode(chunk.prompt_token_ids)


class ChatEvents(Events):
    """chat.completion.chunk events: the role, then contents, reasoning and calls, then the finish
    reason."""

    def __init__(self, head: Head, index: int, shape: Shape) -> None:
        super().__init__(head, "chat.completion.chunk", index, shape)
        self._delta = self._before + b'"delta":'
        self._prefix = self._delta + b'{"content":'
        self._suffix = b',"logprobs":null,"finish_reason":null' + self._after
        self._content_suffix = b"}" + self._suffix
        self._opened = False
        self._parser: AnswerParser | None = None  # None: the text is all content
        self._deltas = Deltas(shape)

    def __call__(self, chunk: TokenChunk) -> bytes:
        if not self._seen(chunk):
            return b"".join(self._rare(chunk))
        if self._parser is None:
            return self._prefix + _encode(chunk.text) + self._content_suffix if chunk.text else b""
        deltas = self._deltas.of(self._parser.push(chunk.text))
        return b"".join(self._delta + _encode(delta) + self._suffix for delta in deltas)

    def _rare(self, chunk: TokenChunk) -> list[bytes]:
        events: list[bytes] = []
        if not self._opened:
            self._opened = True
            self._parser = parser_of(chunk.answer_format, self._shape)
            events.append(self._role(chunk))
        events += self._contents(chunk)
        if chunk.finish_reason:
            called = self._parser is not None and self._parser.calls > 0
            ending = replace(chunk, finish_reason=finish_of(chunk.finish_reason, called=called))
            delta = b'"delta":{},"logprobs":null'
            events.append(self._event(delta, self._ending(ending), chunk=chunk))
        return events

    def _role(self, chunk: TokenChunk) -> bytes:
        delta = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        return self._event(delta, chunk=chunk, top=self._prompt_ids(chunk).removeprefix(b","))

    def _contents(self, chunk: TokenChunk) -> Iterator[bytes]:
        """Return an event for each part of the text; the first has what else is told of it."""
        deltas: list[Delta] = [{"content": chunk.text}] if chunk.text else []
        if self._parser is not None:
            parts = self._parser.push(chunk.text)
            parts += self._parser.finish() if chunk.finish_reason else []
            deltas = [*self._deltas.of(parts)]
        if not deltas and (chunk.logprobs or (self._shape.token_ids and chunk.token_ids)):
            deltas = [{"content": ""}]
        logprobs = chat_logprobs(chunk.logprobs, self._shape) if chunk.logprobs else None
        ids = self._token_ids(chunk)
        for delta in deltas:
            yield self._event(
                b'"delta":', _encode(delta),
                b',"logprobs":', _encode(logprobs), b',"finish_reason":null', ids,
                chunk=chunk,
            )  # fmt: skip
            logprobs, ids = None, b""


def stream_end(head: Head, kind: str, counts: Usage | None) -> bytes:
    if counts is None:
        return DONE
    return event(_encode({**head.fields(kind), "choices": [], "usage": counts})) + DONE
