"""OpenAI's stream events of a completion."""

from __future__ import annotations

import msgspec

from http_gateway.openai.events import Events
from http_gateway.openai.logprobs import completion_logprobs, shown_logprobs
from http_gateway.openai.reply import Head
from http_gateway.openai.shape import Shape
from sax.types import TokenChunk

_encode = msgspec.json.Encoder().encode


class CompletionEvents(Events):
    """text_completion events: texts, the last with the finish reason."""

    def __init__(self, head: Head, index: int, shape: Shape) -> None:
        super().__init__(head, "text_completion", index, shape)
        self._prefix = self._before + b'"text":'
        self._suffix = b',"logprobs":null,"finish_reason":null' + self._after

    def __call__(self, chunk: TokenChunk) -> bytes:
        if self._seen(chunk) and not chunk.prompt_logprobs:
            return self._prefix + _encode(chunk.text) + self._suffix if chunk.text else b""
        entries = shown_logprobs(chunk.prompt_logprobs, chunk.logprobs, self._shape)
        ids = self._token_ids(chunk) if chunk.token_ids else b""
        if not (chunk.text or entries or chunk.finish_reason or ids):
            return b""
        logprobs = completion_logprobs(entries, self._shape) if entries else None
        return self._event(
            b'"text":', _encode(chunk.text),
            b',"logprobs":', _encode(logprobs),
            self._ending(chunk), ids, self._prompt_ids(chunk),
            chunk=chunk,
        )  # fmt: skip
