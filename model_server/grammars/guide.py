"""A guide that follows an answer with a matcher of llguidance.

The mask of the next token is made on another thread as soon as the token before it is known, within
a limit of time: a grammar may be hostile, and the engine must not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from llguidance import LLMatcher

from model_server.engine.worker import Worker
from sax.errors import InvalidRequest

_MASK_S = 0.5  # for one mask; usual ones take 0.1 ms
_THREADS = 2


class MaskThreads:
    """Threads that make masks. One that is stuck is left behind and replaced."""

    def __init__(self) -> None:
        self._workers = [Worker("masks") for _ in range(_THREADS)]
        self._next = 0

    def submit(self, matcher: LLMatcher) -> tuple[Worker, Future[bytes]]:
        self._next = (self._next + 1) % _THREADS
        worker = self._workers[self._next]
        return worker, worker.submit(matcher.compute_bitmask)

    def abandon(self, stuck: Worker) -> None:
        """Give later masks to another thread."""
        self._workers = [Worker("masks") if each is stuck else each for each in self._workers]


class CompiledGrammar:
    """A constraint that was compiled; sequences copy its matcher."""

    def __init__(self, matcher: LLMatcher, field: str, rows: int, threads: MaskThreads) -> None:
        """rows: of the embedding."""
        self._matcher = matcher
        self._field = field
        self._rows = rows
        self._threads = threads

    def begin(self, answer: Sequence[int], allowed: tuple[int, ...] | None) -> MatcherGuide:
        matcher = self._matcher.deep_copy()
        if answer:
            matcher.consume_tokens(list(answer))
        return MatcherGuide(matcher, self._field, self._rows, self._threads, allowed)


class MatcherGuide:
    """Follows one answer."""

    def __init__(
        self,
        matcher: LLMatcher,
        field: str,
        rows: int,
        threads: MaskThreads,
        allowed: tuple[int, ...] | None,
    ) -> None:
        self._matcher = matcher
        self._field = field
        self._bytes = 4 * -(-rows // 32)
        self._threads = threads
        self._allowed = None if allowed is None else _bits(allowed, self._bytes)
        self._making = threads.submit(matcher)

    @property
    def finished(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        if not self._matcher.is_stopped():
            self._making = self._threads.submit(self._matcher)

    def mask(self) -> bytes:
        worker, made = self._making
        try:
            mask = made.result(_MASK_S)
        except TimeoutError as exc:
            self._threads.abandon(worker)
            raise self._refusal(f"a mask took longer than {_MASK_S} s; simplify it") from exc
        if self._matcher.is_error():
            raise self._refusal(self._matcher.get_error())
        mask = mask[: self._bytes]
        if self._allowed is not None:
            mask = (np.frombuffer(mask, np.uint8) & self._allowed).tobytes()
        if not any(mask):
            raise self._refusal("no token may come next that allowed_token_ids allows")
        return mask

    def _refusal(self, why: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self._field} cannot be kept to: {why.partition(_EOL)[0][:300]}", param=self._field
        )


_EOL = "\n"


def _bits(allowed: Sequence[int], size: int) -> Any:
    flags = np.zeros(8 * size, np.uint8)
    flags[list(allowed)] = 1
    return np.packbits(flags, bitorder="little")
