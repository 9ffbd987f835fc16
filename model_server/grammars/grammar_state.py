"""The state of a grammar that follows an answer with a matcher of llguidance.

The mask of the next token is made on another thread as soon as the token before it is known, within
a limit of time: a grammar may be hostile. A step does not wait long for it, so that others go on:
the row is left out, and comes again when its mask is there. Near its last token
an answer is kept on a way to its end (`short_way`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from llguidance import LLMatcher

from model_server.engine.worker import Worker
from model_server.grammars.closing import Closings
from sax.errors import InvalidRequest

# Keeps a short way to the end of an answer, so that it can be complete at its last token.
#
# Near its last token an answer is followed closely: a token after which no way to an end fits into
# what is left is not taken, and where only the way that is known fits, its next token alone may be
# chosen. The way is searched for, within limits (see `closing`): an answer for which none is found
# goes on without, and once that has taken long enough, none is searched for any more.

_NEAR = 64  # tokens before the last one from which on an answer is followed, at least
_EVERY = 16  # tokens from one look at the way to the next before that
_SPARE = 8  # tokens that the rest of a way may have more, cut at another place
_SEARCH_S = 0.1  # of computing, for one way; usual ones take 0.2 to 5 ms
_VAIN_S = 0.04  # of computing, for all looks that find no way


class ShortWay:
    """The way to the end of one answer. One thread at a time may call it."""

    def __init__(self, closings: Closings, left: int, allowed: np.ndarray | None) -> None:
        """left: tokens that the answer may still have. allowed: u8[V / 8], bits of its tokens."""
        self._closings = closings
        self._allowed = allowed
        self._left = left
        self._longest = 0  # way that was seen
        self._way: list[int] | None = None  # from here to an end; None: unknown
        self._next: list[int] | None = None  # after the token that was asked for last
        self._refused = False  # a token, so that only the way is open
        self._began = False
        self._vain_s = _VAIN_S  # that looks may still take

    @property
    def near(self) -> bool:
        return self._left <= max(_NEAR, 2 * self._longest)

    @property
    def only(self) -> list[int] | None:
        """The one token that may come next, [] if the answer must end here; None: any that fits."""
        if self._way is None or not (self._refused or len(self._way) >= self._left):
            return None
        return self._way[:1]

    def look(self, matcher: LLMatcher) -> None:
        """Find a way from here, if it is time to: at the start, now and then, and near the end."""
        due = self.near or not self._began or self._left % _EVERY == 0
        self._began = True
        if self._way is None and due and self._vain_s > 0:
            began_s = time.thread_time()
            self._way = self._find(matcher, self._left, min(_SEARCH_S, self._vain_s))
            if self._way is None:
                self._vain_s -= time.thread_time() - began_s

    def leaves_room(self, forced: Sequence[int]) -> bool:
        """True if the answer can surely be completed behind these tokens.

        The way need not be cut into the same tokens.
        """
        return (
            not self.near
            or self._way is None
            or len(self._way) + len(forced) + _SPARE <= self._left
        )

    def expects(self, token: int) -> bool:
        """True if the token needs no check: it is on the way, or there is none to keep to."""
        if self._way is None or not self.near:
            self._next = None
        elif self._way[:1] == [token]:
            self._next = self._way[1:]
        else:
            return False
        return True

    def fits(self, matcher: LLMatcher, token: int) -> bool:
        """Return False if no way was found that fits after this token, though one fits before.

        matcher: of the place before it, which goes on behind it.
        """
        if not matcher.consume_token(token):
            self._next = None
            return True  # the mask says what is wrong
        self._next = self._after(matcher)
        self._refused = self._next is None
        return not self._refused

    def advance(self) -> None:
        """Go on behind the token that was asked for last, or behind one that was forced."""
        self._left -= 1
        self._way, self._next, self._refused = self._next, None, False

    def _after(self, matcher: LLMatcher) -> list[int] | None:
        assert self._way is not None
        room = self._left - 1
        if len(self._way) <= room:
            old = matcher.deep_copy()
            if old.try_consume_tokens(self._way) == len(self._way) and old.is_accepting():
                return self._way
        return self._find(matcher, room, _SEARCH_S)

    def _find(self, matcher: LLMatcher, room: int, limit_s: float) -> list[int] | None:
        way = self._closings.find(matcher, room, limit_s, self._allowed)
        self._longest = max(self._longest, len(way or ()))
        return way


_MASK_S = 0.5  # for one mask; usual ones take 0.1 ms
_PATIENCE_S = 0.05  # that a step waits for a mask before it goes on without its row
_LOOK_S = 5.0  # that a row waits for a look at its way to an end, of at most 0.1 s of computing
_FIT_S = 2.0  # for all looks whether a token leaves room for an end; usual ones take 1 ms each

_Next = tuple[bytes, tuple[int, ...]]  # the mask, and the forced tokens


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
        self._masked: Future[_Next] | None = None  # done once the mask is there
        self._making: Future[_Next] | None = None  # and once the way to an end was looked at
        self._begun_s = 0.0  # when the mask that is being made was asked for
        self._fit_s = _FIT_S  # that looks may still take
        self._run: tuple[int, ...] = ()  # forced tokens, known once the mask is
        self._allowed = allowed
        self._ends = ends  # tokens that end an answer
        self._way = way
        self._late = False
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
            self._begun_s = time.monotonic()
            self._masked = masked = Future[_Next]()
            self._making = self._thread.submit(_next, self._matcher, self._way, skips, masked)

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
            if waited_s > _MASK_S and not self._masked.done():
                raise self._refusal(f"a mask took longer than {_MASK_S} s; simplify it") from exc
            if waited_s <= _LOOK_S:
                self._late = True
                self._counts.late += 1
                return None
            self._give_up()
            mask, run = self._masked.result()
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


def _next(matcher: LLMatcher, way: ShortWay | None, skips: bool, masked: Future[_Next]) -> _Next:
    """Return the mask, and the tokens that are forced if they may be skipped.

    masked: gets them before the way to an end is looked at.
    """
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        return mask, ()
    run = matcher.compute_ff_tokens() if skips else []
    masked.set_result((mask, tuple(run)))
    if way is not None:
        way.look(matcher)
        if not way.leaves_room(run):
            run = []
    return mask, tuple(run)


def _bits(allowed: Sequence[int], size: int) -> np.ndarray:
    flags = np.zeros(8 * size, np.uint8)
    flags[list(allowed)] = 1
    return np.packbits(flags, bitorder="little")
