"""Keeps a short way to the end of an answer, so that it can be complete at its last token.

Near its last token an answer is followed closely: a token after which no way to an end fits into
what is left is not taken, and where only the way that is known fits, its next token alone may be
chosen. The way is searched for, within limits (see `closing`): an answer for which none is found
goes on without, and once that has taken long enough, none is searched for any more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher

from model_server.grammars.closing import Closings

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
        return not self.far(0)

    def far(self, ahead: int) -> bool:
        """True if an answer that goes on by so many tokens is still not followed closely."""
        return self._left - ahead > max(_NEAR, 2 * self._longest)

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
