"""The state of a grammar that follows an answer with a matcher of llguidance.

The mask of the next token is made on another thread as soon as the token before it is known, within
a limit of time: a grammar may be hostile. A step does not wait long for it, so that others go on:
the row is left out, and comes again when its mask is there. Near its last token
an answer is kept on a way to its end (`short_way`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from llguidance import LLMatcher

from model_server.engine.worker import Worker
from model_server.grammars.closing import Closings
from model_server.grammars.drafted_masks import DraftedMasks, Mask, looked, mask_of
from model_server.grammars.short_way import ShortWay
from sax.errors import InvalidRequest

_MASK_S = 0.5  # of processor time for one mask; usual ones take 0.1 ms
_PATIENCE_S = 0.05  # that a step waits for a mask before it goes on without its row
_LOOK_S = 5.0  # that a row waits for a look at its way to an end, of at most 0.1 s of computing
_FIT_S = 2.0  # for all looks whether a token leaves room for an end; usual ones take 1 ms each

_DRAFTS_LATE = 3  # steps with masks that are late, after which an answer has no draft tokens
_DRAFT_S = 0.005  # that a step waits to hear which of its draft tokens may come next


class GrammarStateCounts:
    """Totals of the grammars of one model."""

    def __init__(self) -> None:
        self.unclosed = 0  # answers that went on without a way to their end: none was found in time
        self.late = 0  # rows that were left out of a step because their mask was not there


class CompiledGrammar:
    """A constraint that was compiled; sequences copy its matcher."""

    def __init__(
        self,
        matcher: LLMatcher,
        field: str,
        rows: int,
        counts: GrammarStateCounts,
        closings: Closings,
    ) -> None:
        """rows: of the embedding."""
        self.partly = False  # it does not hold all of its schemas: finished answers are checked
        self._matcher = matcher
        self._field = field
        self._rows = rows
        self._counts = counts
        self._closings = closings

    def begin(
        self, answer: Sequence[int], allowed: tuple[int, ...] | None, left: int | None
    ) -> MatcherState:
        matcher = self._after(answer)
        size = 4 * -(-self._rows // 32)
        bits = None if allowed is None else _bits(allowed, size)
        way = None if left is None else ShortWay(self._closings, left, bits)
        ends = self._closings.ends
        return MatcherState(matcher, self._field, size, self._counts, bits, ends, way)

    def follow(self, answer: Sequence[int]) -> BegunGrammar:
        """Return this constraint on answers that begin with these tokens, which takes some
        microseconds for each. Raises InvalidRequest for tokens that it does not allow."""
        matcher = self._after(answer)
        if matcher.is_error():
            raise refusal(self._field, matcher.get_error())
        rest = CompiledGrammar(matcher, self._field, self._rows, self._counts, self._closings)
        return BegunGrammar(rest, len(answer), complete=matcher.is_stopped())

    def _after(self, answer: Sequence[int]) -> LLMatcher:
        matcher = self._matcher.deep_copy()
        if answer:
            matcher.consume_tokens(list(answer))
        return matcher


class BegunGrammar:
    """A constraint that followed the first tokens of an answer, so that no sequence need to."""

    def __init__(self, rest: CompiledGrammar, begun: int, *, complete: bool) -> None:
        """complete: nothing may follow them."""
        self.complete = complete
        self._rest = rest
        self._begun = begun

    def begin(
        self, answer: Sequence[int], allowed: tuple[int, ...] | None, left: int | None
    ) -> MatcherState:
        """Begin like `CompiledGrammar`; the answer begins with the tokens that were followed."""
        return self._rest.begin(answer[self._begun :], allowed, left)


class ThreadTime:
    """The processor time of one job, as other threads see it: a busy machine makes no job long."""

    def __init__(self) -> None:
        # The clock and its time then, in one value: another thread may look at any moment.
        self._begun: tuple[int, float] | None = None

    def begin(self) -> None:
        """Count from here on, on the thread that does the job."""
        if hasattr(time, "pthread_getcpuclockid"):
            clock = time.pthread_getcpuclockid(threading.get_ident())
        else:  # on macOS, where a busy machine does make jobs long
            clock = time.CLOCK_MONOTONIC
        self._begun = clock, time.clock_gettime(clock)

    @property
    def seconds(self) -> float:
        """Seconds so far, while the job runs; 0.0 before."""
        if self._begun is None:
            return 0.0
        clock, from_s = self._begun
        return time.clock_gettime(clock) - from_s


class MatcherState:
    """Follows one answer."""

    def __init__(
        self,
        matcher: LLMatcher,
        field: str,
        size: int,
        counts: GrammarStateCounts,
        allowed: np.ndarray | None,
        ends: Sequence[int],
        way: ShortWay | None,
    ) -> None:
        """size: of a mask, in bytes. allowed: u8[size]. way: None if it may be incomplete."""
        self._matcher = matcher
        self._field = field
        self._size = size
        self._counts = counts
        # A thread of its own: no other answer waits for what this one's grammar costs.
        self._thread = Worker("masks")
        self._masked: Future[Mask] | None = None  # done once the mask is there
        self._making: Future[Mask] | None = None  # and once the way to an end was looked at
        self._begun_s = 0.0  # when the mask that is being made was asked for
        self._spent = ThreadTime()  # on it
        self._fit_s = _FIT_S  # that looks may still take
        self._run: tuple[int, ...] = ()  # forced tokens, known once the mask is
        self._allowed = allowed
        self._ends = ends  # tokens that end an answer
        self._way = way
        self._late = False
        self._drafted: DraftedMasks | None = None  # masks behind draft tokens
        self._tries = _DRAFTS_LATE  # steps whose masks behind draft tokens may still be late
        self.finished = False
        self._go_on()

    def fits(self, token: int) -> bool:
        way = self._way
        if token in self._run[:1] or way is None or way.expects(token):
            return True
        began_s = time.monotonic()
        found = self._thread.submit(way.fits, self._matcher.deep_copy(), token)
        try:
            return found.result(self._fit_s)
        except TimeoutError:
            self._give_up()
            return True
        finally:
            self._fit_s = max(0.0, self._fit_s - (time.monotonic() - began_s))

    def _give_up(self) -> None:
        """Let the answer go on, though it may end incomplete."""
        self._way = None  # a thread that is stuck has the old one
        self._thread = Worker("masks")
        self._counts.unclosed += 1

    def accept(self, token: int) -> None:
        place = self._drafted.take(token) if self._drafted is not None else None
        if place is not None:
            self._way = place.way
        elif self._way is not None:
            self._way.advance()
        self._matcher.consume_token(token)
        self._run = self._run[1:] if token in self._run[:1] else ()
        if place is not None and not self._run:
            self._making = self._masked = Future[Mask]()
            self._making.set_result(place.made)
        elif not self._run:
            self._go_on()

    def coming(self) -> tuple[int, ...]:
        known = self._known()
        return known[1] if known is not None else ()

    def _known(self, wait_s: float = 0.0) -> Mask | None:
        """Return the last mask, and the tokens that are forced from here on, if they are there."""
        making = self._making
        if self.finished or making is None or (self._way is not None and self._way.near):
            return None
        try:
            mask, run = making.result(wait_s)
        except TimeoutError:
            return None
        return None if self._matcher.is_error() else (mask, self._run or run)

    def draft(self, tokens: Sequence[int]) -> int:
        wait_until_s = time.monotonic() + _DRAFT_S
        if not self._tries or (known := self._known(_DRAFT_S)) is None:
            return 0
        ends = (place for place, token in enumerate(tokens) if token in self._ends)
        tokens = tokens[: next(ends, len(tokens))]
        self._run = known[1]
        skips = self._allowed is None
        made = DraftedMasks(self._matcher.deep_copy(), known, self._way, skips=skips)
        self._thread.submit(made.follow, tokens)
        self._drafted = made
        try:
            return made.count.result(max(0.0, wait_until_s - time.monotonic()))
        except TimeoutError:
            self._stop_drafts()
            return 0

    def _stop_drafts(self) -> None:
        """Let the answer go on without these draft tokens: their masks take long."""
        if self._drafted is not None:
            self._drafted.stop()
        self._tries, self._drafted = self._tries - 1, None

    def drafted(self, count: int) -> bytes | None:
        if self._drafted is None:
            return None
        try:
            place = self._drafted.after(count, _PATIENCE_S)
        except TimeoutError:
            self._stop_drafts()
            return None
        if place is None:
            return None
        if place.run:
            return _bits(place.run[:1], self._size).tobytes()
        mask = self._restricted(place.made[0])
        return mask if any(mask) else None

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
            self._begun_s = time.monotonic()
            self._masked, self._spent = masked, spent = Future[Mask](), ThreadTime()
            self._making = self._thread.submit(
                _next, self._matcher, self._way, skips, masked, spent
            )

    @property
    def late(self) -> bool:
        return self._late and self._making is not None and not self._making.done()

    def mask(self) -> bytes | None:
        if self._run:
            return _bits(self._run[:1], self._size).tobytes()
        assert self._making is not None
        assert self._masked is not None
        # From when it was begun, so that several that are late hold up a step no longer than one.
        waited_s = time.monotonic() - self._begun_s
        patience_s = _PATIENCE_S if self._late else max(0.0, _PATIENCE_S - waited_s)
        self._late = False
        try:
            mask, run = self._making.result(patience_s)
        except TimeoutError as exc:
            masked = self._masked.done()
            if not masked and self._spent.seconds > _MASK_S:
                raise self._refusal(f"a mask took longer than {_MASK_S} s; simplify it") from exc
            if not masked or waited_s <= _LOOK_S:  # not masked: the machine is busy
                self._late = True
                self._counts.late += 1
                return None
            self._give_up()
            mask, run = self._masked.result()
        if self._matcher.is_error():
            raise self._refusal(self._matcher.get_error())
        mask = self._restricted(mask)
        if not any(mask):
            raise self._refusal("no token may come next that allowed_token_ids allows")
        return self._narrowed(mask, run)

    def _restricted(self, mask: bytes) -> bytes:
        """Return the mask of the tokens that a mask and the request allow."""
        mask = mask[: self._size]
        if self._allowed is None:
            return mask
        return (np.frombuffer(mask, np.uint8) & self._allowed).tobytes()

    def _narrowed(self, mask: bytes, run: tuple[int, ...]) -> bytes:
        """Return the mask of what is left where only one token is forced, or fits."""
        if self._way is None or (only := self._way.only) is None:
            self._run = run
            return _bits(run[:1], self._size).tobytes() if run else mask
        if only:  # the mask may have another token for the same text; the way is valid, too
            return _bits(only, self._size).tobytes()
        bits = np.frombuffer(mask, np.uint8) & _bits(self._ends, self._size)
        if bits.any():
            return bits.tobytes()
        self._give_up()
        return mask

    def _refusal(self, why: str) -> InvalidRequest:
        return refusal(self._field, why)


_EOL = "\n"


def refusal(field: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{field} cannot be kept to: {why.partition(_EOL)[0][:300]}", param=field)


def _next(
    matcher: LLMatcher, way: ShortWay | None, skips: bool, masked: Future[Mask], spent: ThreadTime
) -> Mask:
    """Return the mask, and the tokens that are forced if they may be skipped.

    masked: gets them before the way to an end is looked at.
    """
    spent.begin()
    made = mask_of(matcher, skips=skips)
    if matcher.is_error():
        return made
    masked.set_result(made)
    return looked(made, matcher, way)


def _bits(allowed: Sequence[int], size: int) -> np.ndarray:
    flags = np.zeros(8 * size, np.uint8)
    flags[list(allowed)] = 1
    return np.packbits(flags, bitorder="little")
