"""Masks of tokens, and those behind draft tokens, which are made before the answer gets there.

A copy of the matcher goes ahead over the draft tokens. Each place keeps all that the state of the
answer would have there, so that going on to it changes nothing of what comes next.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from llguidance import LLMatcher

from model_server.grammars.short_way import ShortWay

Mask = tuple[bytes, tuple[int, ...]]  # and the tokens that are forced from there on

_LIMIT_S = 0.02  # of computing, for all masks of one step; usual ones take 0.1 ms each


def mask_of(matcher: LLMatcher, *, skips: bool) -> Mask:
    """Return the next mask. skips: with the tokens that are forced; the matcher may have failed."""
    mask = matcher.compute_bitmask()
    forced = matcher.compute_ff_tokens() if skips and not matcher.is_error() else []
    return mask, tuple(forced)


def looked(made: Mask, matcher: LLMatcher, way: ShortWay | None) -> Mask:
    """Look at the way to an end; drop forced tokens behind which it might not fit."""
    mask, run = made
    if way is not None:
        way.look(matcher)
        if not way.leaves_room(run):
            run = ()
    return mask, run


class DraftPlace(NamedTuple):
    """A place behind a draft token."""

    token: int
    made: Mask  # the last mask that was made
    run: tuple[int, ...]  # what is left of the tokens that were forced behind it
    way: ShortWay | None


class DraftedMasks:
    """Goes ahead once, over some draft tokens."""

    def __init__(
        self, matcher: LLMatcher, made: Mask, way: ShortWay | None, *, skips: bool
    ) -> None:
        """matcher: a copy. made: the mask before all, with the tokens that are forced next."""
        self.count: Future[int] = Future()  # tokens that may come next
        self._matcher = matcher
        self._made, self._run = made, made[1]
        self._way = way
        self._skips = skips
        self._places: list[DraftPlace] = []
        self._done: Future[None] = Future()
        self._taken = 0
        self._stopped = False

    def stop(self) -> None:
        """Make no more masks."""
        self._stopped = True

    def after(self, count: int, wait_s: float) -> DraftPlace | None:
        """Return the place behind so many tokens, or None if it is not one to choose from.

        Raises TimeoutError.
        """
        if count > len(self._places):
            self._done.result(wait_s)
        return self._places[count - 1] if count <= len(self._places) else None

    def take(self, token: int) -> DraftPlace | None:
        """Return the next place if it is behind this token; if not, the answer goes another way."""
        if not self._stopped and self._taken < len(self._places):
            place = self._places[self._taken]
            if place.token == token:
                self._taken += 1
                return place
        self.stop()
        return None

    def follow(self, tokens: Sequence[int]) -> None:
        """Make the masks, on the thread of the grammar."""
        end_s = time.thread_time() + _LIMIT_S
        try:
            count = self._fitting(tokens)
            self.count.set_result(count)
            for token in tokens[:count]:
                if self._stopped or time.thread_time() > end_s or not self._add(token):
                    return
        finally:
            self._done.set_result(None)

    def _fitting(self, tokens: Sequence[int]) -> int:
        """Return how many may come next before the end is near."""
        way, most = self._way, len(tokens)
        if way is not None:
            most = next((count for count in range(most) if not way.far(count + 1)), most)
        forced = self._run[:most]
        if tuple(tokens[: len(forced)]) != forced:
            pairs = zip(tokens, forced, strict=False)
            return next(place for place, (token, only) in enumerate(pairs) if token != only)
        if most == len(forced):
            return most
        return self._matcher.validate_tokens(list(tokens[:most]))

    def _add(self, token: int) -> bool:
        """Go on over a token; return False if the place behind it is not one to choose from."""
        matcher = self._matcher
        if self._way is not None:
            self._way = copy.copy(self._way)
            self._way.advance()
        if not matcher.consume_token(token) or matcher.is_stopped():
            return False
        self._run = self._run[1:]
        if not self._run:
            made = mask_of(matcher, skips=self._skips)
            if matcher.is_error():
                return False
            self._made = looked(made, matcher, self._way)
            self._run = self._made[1]
        if self._way is not None and not self._way.far(0):
            return False
        self._places.append(DraftPlace(token, self._made, self._run, self._way))
        return True
