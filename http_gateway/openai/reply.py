"""OpenAI's replies: token chunks to SSE events or to one JSON body.

Everything in an event except its text is encoded once per choice, so that a streamed token costs
one JSON string and one join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

import msgspec

from http_gateway.sse import DONE, event
from sax.types import TokenChunk, TokenLogprob

_encode = msgspec.json.Encoder().encode

# JSON has no infinity; OpenAI and vLLM write this for an impossible token.
_LEAST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class Head:
    """Leading fields of every event and body of one reply."""

    id: str
    created: int  # seconds since the epoch
    model: str  # as the client wrote it

    def fields(self, kind: str) -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }


@dataclass(slots=True)
class Transcript:
    """Output of one choice so far."""

    text: list[str] = field(default_factory=list[str])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def add(self, chunk: TokenChunk) -> None:
        self.text.append(chunk.text)
        self.logprobs.extend(chunk.logprobs)
        self.finish_reason = chunk.finish_reason
        self.prompt_tokens = chunk.prompt_tokens or self.prompt_tokens
        self.completion_tokens = chunk.completion_tokens
        self.cached_tokens = chunk.cached_tokens or self.cached_tokens


class Counted(Protocol):
    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...


class Usage(TypedDict):
    """OpenAI's token counts of one reply."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


def usage(choices: Sequence[Counted], n: int) -> Usage:
    """Sum the tokens; a prompt counts once for its n choices, as the first of them found it."""
    cached = sum(choice.cached_tokens for choice in choices[::n])
    prompt = sum(choice.prompt_tokens for choice in choices[::n])
    completion = sum(choice.completion_tokens for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Events:
    """Encodes the chunks of one streamed choice and keeps its token counts."""

    def __init__(self, head: Head, kind: str, index: int, include_usage: bool) -> None:
        opening = _encode(head.fields(kind)).removesuffix(b"}")
        self._before = b'data: %b,"choices":[{"index":%d,' % (opening, index)
        self._after = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"
        self._last: TokenChunk | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0

    @property
    def completion_tokens(self) -> int:
        return self._last.completion_tokens if self._last else 0

    @property
    def finished(self) -> bool:
        return self._last is not None and self._last.finish_reason is not None

    def _seen(self, chunk: TokenChunk) -> bool:
        """Record the counts. True when the chunk is plain text in the middle of a stream."""
        first, self._last = self._last is None, chunk
        if chunk.prompt_tokens:
            self.prompt_tokens = chunk.prompt_tokens
            self.cached_tokens = chunk.cached_tokens
        return not (first or chunk.logprobs or chunk.finish_reason)

    def _event(self, *parts: bytes) -> bytes:
        return b"".join((self._before, *parts, self._after))


class ChatEvents(Events):
    """chat.completion.chunk events: the role, then contents, then the finish reason."""

    def __init__(self, head: Head, index: int, include_usage: bool) -> None:
        super().__init__(head, "chat.completion.chunk", index, include_usage)
        self._prefix = self._before + b'"delta":{"content":'
        self._suffix = b'},"logprobs":null,"finish_reason":null' + self._after
        self._opened = False

    def __call__(self, chunk: TokenChunk) -> bytes:
        if self._seen(chunk):
            return self._prefix + _encode(chunk.text) + self._suffix if chunk.text else b""
        return b"".join(self._rare(chunk))

    def _rare(self, chunk: TokenChunk) -> list[bytes]:
        events: list[bytes] = []
        if not self._opened:
            self._opened = True
            events.append(self._delta(b'{"role":"assistant","content":""}'))
        if chunk.text or chunk.logprobs:
            logprobs = chat_logprobs(chunk.logprobs) if chunk.logprobs else None
            events.append(self._delta(_encode({"content": chunk.text}), _encode(logprobs)))
        if chunk.finish_reason:
            events.append(self._delta(b"{}", finish=_encode(chunk.finish_reason)))
        return events

    def _delta(self, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        return self._event(
            b'"delta":', delta, b',"logprobs":', logprobs, b',"finish_reason":', finish
        )


class CompletionEvents(Events):
    """text_completion events: texts, the last with the finish reason."""

    def __init__(self, head: Head, index: int, include_usage: bool) -> None:
        super().__init__(head, "text_completion", index, include_usage)

    def __call__(self, chunk: TokenChunk) -> bytes:
        self._seen(chunk)
        if not (chunk.text or chunk.logprobs or chunk.finish_reason):
            return b""
        logprobs = completion_logprobs(chunk.logprobs) if chunk.logprobs else None
        return self._event(
            b'"text":', _encode(chunk.text),
            b',"logprobs":', _encode(logprobs),
            b',"finish_reason":', _encode(chunk.finish_reason),
        )  # fmt: skip


def stream_end(head: Head, kind: str, counts: Usage | None) -> bytes:
    if counts is None:
        return DONE
    return event(_encode({**head.fields(kind), "choices": [], "usage": counts})) + DONE


def chat_body(head: Head, transcripts: Sequence[Transcript], counts: Usage) -> bytes:
    choices = [_chat_choice(i, transcript) for i, transcript in enumerate(transcripts)]
    return _encode({**head.fields("chat.completion"), "choices": choices, "usage": counts})


def _chat_choice(index: int, transcript: Transcript) -> dict[str, object]:
    content = "".join(transcript.text)
    logprobs = transcript.logprobs
    return {
        "index": index,
        "message": {"role": "assistant", "content": content, "refusal": None},
        "logprobs": chat_logprobs(logprobs) if logprobs else None,
        "finish_reason": transcript.finish_reason,
    }


def completion_body(head: Head, transcripts: Sequence[Transcript], counts: Usage) -> bytes:
    choices = [_completion_choice(i, transcript) for i, transcript in enumerate(transcripts)]
    return _encode({**head.fields("text_completion"), "choices": choices, "usage": counts})


def _completion_choice(index: int, transcript: Transcript) -> dict[str, object]:
    logprobs = transcript.logprobs
    return {
        "index": index,
        "text": "".join(transcript.text),
        "logprobs": completion_logprobs(logprobs) if logprobs else None,
        "finish_reason": transcript.finish_reason,
    }


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, object]:
    content = [
        {**_chat_logprob(entry), "top_logprobs": [_chat_logprob(rival) for rival in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_logprob(entry: TokenLogprob) -> dict[str, object]:
    return {
        "token": entry.token,
        "logprob": _finite(entry.logprob),
        "bytes": list(entry.token_bytes),
    }


def completion_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, object]:
    """Return four parallel lists; offsets count characters from the start of the completion."""
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "top_logprobs": [_rivals(entry) for entry in entries],
        "text_offset": [entry.text_offset for entry in entries],
    }


def _rivals(entry: TokenLogprob) -> dict[str, float]:
    """Top tokens plus the chosen one; where texts are equal the likelier one is kept."""
    rivals: dict[str, float] = {}
    for rival in (*entry.top, entry):
        rivals.setdefault(rival.token, _finite(rival.logprob))
    return rivals


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
