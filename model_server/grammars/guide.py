"""A guide that follows an answer with a matcher of llguidance.

The mask of the next token is made on another thread as soon as the token before it is known, within
a limit of time: a grammar may be hostile, and the engine must not wait for it. Near its last token
an answer is kept on a way to its end (`short_way`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
from llguidance import LLMatcher

from model_server.engine.worker import Worker
from model_server.grammars.closing import Closings
from model_server.grammars.short_way import ShortWay
from sax.errors import InvalidRequest

_MASK_S = 0.5  # for one mask; usual ones take 0.1 ms
_FIT_S = 0.25  # for a look whether a token leaves room for an end; usual ones take 1 ms
_THREADS = 2

Result = TypeVar("Result")
_Next = tuple[bytes, tuple[int, ...]]  # the mask, and the forced tokens


class MaskThreads:
    """Threads that work on matchers. One that is stuck is left behind and replaced."""

    def __init__(self) -> None:
        self._workers = [Worker("masks") for _ in range(_THREADS)]
        self._next = 0
        self.unclosed = 0  # answers that go on without a way to their end: it took too long to find

    def submit(self, job: Callable[..., Result], *args: Any) -> tuple[Worker, Future[Result]]:
        self._next = (self._next + 1) % _THREADS
        worker = self._workers[self._next]
        return worker, worker.submit(job, *args)

    def abandon(self, stuck: Worker) -> None:
        """Give later jobs to another thread."""
        self._workers = [Worker("masks") if each is stuck else each for each in self._workers]


class CompiledGrammar:
    """A constraint that was compiled; sequences copy its matcher."""

    def __init__(
        self, matcher: LLMatcher, field: str, rows: int, threads: MaskThreads, closings: Closings
    ) -> None:
        """rows: of the embedding."""
        self._matcher = matcher
        self._field = field
        self._rows = rows
        self._threads = threads
        self._closings = closings

    def begin(
        self, answer: Sequence[int], allowed: tuple[int, ...] | None, left: int | None
    ) -> MatcherGuide:
        matcher = self._matcher.deep_copy()
        if answer:
            matcher.consume_tokens(list(answer))
        size = 4 * -(-self._rows // 32)
        bits = None if allowed is None else _bits(allowed, size)
        way = None if left is None else ShortWay(self._closings, left, bits)
        ends = self._closings.ends
        return MatcherGuide(matcher, self._field, size, self._threads, bits, ends, way)


class MatcherGuide:
    """Follows one answer."""

    def __init__(
        self,
        matcher: LLMatcher,
        field: str,
        size: int,
        threads: MaskThreads,
        allowed: np.ndarray | None,
        ends: Sequence[int],
        way: ShortWay | None,
    ) -> None:
        """size: of a mask, in bytes. allowed: u8[size]. way: None if it may be incomplete."""
        self._matcher = matcher
        self._field = field
        self._size = size
        self._threads = threads
        self._making: tuple[Worker, Future[_Next]] | None = None
        self._run: tuple[int, ...] = ()  # forced tokens, known once the mask is
        self._allowed = allowed
        self._ends = ends  # tokens that end an answer
        self._way = way
        self.finished = False
        self._go_on()

    def fits(self, token: int) -> bool:
        way = self._way
        if token in self._run[:1] or way is None or way.expects(token):
            return True
        worker, found = self._threads.submit(way.fits, self._matcher.deep_copy(), token)
        try:
            return found.result(_FIT_S)
        except TimeoutError:
            self._threads.abandon(worker)
            self._give_up()
            return True

    def _give_up(self) -> None:
        """Let the answer go on, though it may end incomplete."""
        self._way = None  # a thread that is stuck has the old one
        self._threads.unclosed += 1

    def accept(self, token: int) -> None:
        if self._way is not None:
            self._way.advance()
        self._matcher.consume_token(token)
        self._run = self._run[1:] if token in self._run[:1] else ()
        if not self._run:
            self._go_on()

    def forced(self) -> tuple[int, ...]:
        return self._run

    def _go_on(self) -> None:
        """Have the next mask made, unless the answer is complete.

        Nobody else may touch the matcher until the mask is there: it refuses two callers at once.
        """
        stopped = self._matcher.is_stopped()
        self.finished = stopped and not self._matcher.is_error()
        if not stopped or not self._making:
            skips = self._allowed is None
            self._making = self._threads.submit(_next, self._matcher, self._way, skips)

    def mask(self) -> bytes:
        if self._run:
            return _bits(self._run[:1], self._size).tobytes()
        assert self._making is not None
        worker, made = self._making
        try:
            mask, run = made.result(_MASK_S)
        except TimeoutError as exc:
            self._threads.abandon(worker)
            raise self._refusal(f"a mask took longer than {_MASK_S} s; simplify it") from exc
        if self._matcher.is_error():
            raise self._refusal(self._matcher.get_error())
        mask = mask[: self._size]
        if self._allowed is not None:
            mask = (np.frombuffer(mask, np.uint8) & self._allowed).tobytes()
        if not any(mask):
            raise self._refusal("no token may come next that allowed_token_ids allows")
        return self._narrowed(mask, run)

    def _narrowed(self, mask: bytes, run: tuple[int, ...]) -> bytes:
        """Return the mask of what is left where only one token is forced, or fits."""
        if self._way is None or (only := self._way.only) is None:
            self._run = run
            return _bits(run[:1], self._size).tobytes() if run else mask
        bits = np.frombuffer(mask, np.uint8) & _bits(only or self._ends, self._size)
        if bits.any():
            return bits.tobytes()
        self._give_up()
        return mask

    def _refusal(self, why: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self._field} cannot be kept to: {why.partition(_EOL)[0][:300]}", param=self._field
        )


_EOL = "\n"


def _next(matcher: LLMatcher, way: ShortWay | None, skips: bool) -> _Next:
    """Return the mask, and the tokens that are forced if they may be skipped."""
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        return mask, ()
    run = matcher.compute_ff_tokens() if skips else []
    if way is not None:
        way.look(matcher)
        if not way.leaves_room(run):
            run = []
    return mask, tuple(run)


def _bits(allowed: Sequence[int], size: int) -> np.ndarray:
    flags = np.zeros(8 * size, np.uint8)
    flags[list(allowed)] = 1
    return np.packbits(flags, bitorder="little")
