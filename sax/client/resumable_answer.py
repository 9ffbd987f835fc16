"""Resumable answer: follows an answer, and makes the request for the rest if its replica is lost.

Pure. Tokens are chosen by seed and position, so that another replica goes on as the first one would
have, up to near ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sax.errors import ReplicaLost
from sax.types import AnswerSoFar, GenerateRequest, TokenChunk


class ResumableAnswer:
    """Follows one answer as its chunks arrive."""

    def __init__(self, request: GenerateRequest) -> None:
        self.chunks = 0
        self.heard: Callable[[], None] | None = None  # called with each chunk
        self.heard_at = 0.0  # when the last one arrived, in the time of `add`
        self._request = request
        self._ids: list[int] = []
        self._prompt_logprobs = 0
        self._score = 0.0
        self._seed: int | None = None
        self._version = ""
        self._span = ""  # of the part that came last
        if (begun := request.answer) is not None:
            self._ids += begun.token_ids
            self._prompt_logprobs, self._score = begun.prompt_logprobs, begun.score
            self._version, self._span = begun.version, begun.traceparent

    def add(self, chunk: TokenChunk, now: float) -> None:
        """Take in the next chunk. Raises ReplicaLost for one that does not follow: a server older
        than continuations begins the answer again."""
        tokens = len(self._ids) + len(chunk.token_ids)
        if chunk.completion_tokens != tokens:
            raise ReplicaLost(
                f"the replica sent token {chunk.completion_tokens} of the answer instead of token "
                f"{tokens}: it cannot go on with one that was begun elsewhere"
            )
        self.chunks += 1
        if self.heard is not None:
            self.heard()
        self.heard_at = now
        self._ids += chunk.token_ids
        self._score = chunk.score
        if chunk.prompt_logprobs:
            self._prompt_logprobs += len(chunk.prompt_logprobs)
        if chunk.traceparent:
            self._span = chunk.traceparent
        if chunk.seed is not None:
            self._seed, self._version = chunk.seed, chunk.version

    @property
    def request_id(self) -> str:
        return self._request.request_id

    @property
    def tokens(self) -> int:
        """Tokens of the answer that arrived."""
        return len(self._ids)

    @property
    def rest(self) -> GenerateRequest:
        """The request for what has not arrived; the caller's own before the first chunk."""
        if not self.chunks:
            return self._request
        sampling = self._request.sampling
        if self._seed is not None:
            sampling = replace(sampling, seed=self._seed)
        answer = AnswerSoFar(
            token_ids=tuple(self._ids),
            score=self._score,
            prompt_logprobs=self._prompt_logprobs,
            version=self._version,
            traceparent=self._span,
        )
        return replace(self._request, sampling=sampling, answer=answer)
