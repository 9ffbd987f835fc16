"""Finds a short way from where an answer stands to an end that its grammar accepts.

llguidance has no such call, so the way is searched for on a copy of the matcher: first greedily,
with the tokens that usually close something before others, then with one choice more at a time made
otherwise. What is found is valid, but need not be the shortest way there is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer

_TRIED = 64  # candidates of one state
_SEARCHES = 200  # greedy walks of one search
_SHORT_SEARCHES = 24  # that give up when they walk in circles; they come first
_CIRCLED = 24  # tokens that are a circle if they repeat a third of them or less
_BRANCHES = 12  # first states of a walk at which another choice is tried
_OTHERS = 4  # other choices at one of them
_FEW = 8  # candidates of a state that need no others
_ALPHABET = 20  # letters that may all come next inside a text
_LONG = 4  # tokens of letters that fill a text of a given length
_CLOSERS = frozenset(b"}])")
_QUOTE = ord('"')
_CLOSING = b'}])"'
_WORDS = (b"null", b"true", b"false")
_LONGEST_WORD = max(map(len, _WORDS))


class Closings:
    """Searches for one vocabulary. Thread-safe."""

    def __init__(self, tokenizer: LLTokenizer | None, tokens: Sequence[bytes]) -> None:
        """tokens: text of each. tokenizer: None for a model whose answers cannot end."""
        self._tokenizer = tokenizer
        ranked = sorted((rank, id) for id, text in enumerate(tokens) if (rank := _rank(text)))
        letters = [id for id, text in enumerate(tokens) if text.isalpha() and text.isascii()]
        letters.sort(key=lambda id: (-len(tokens[id]), id))
        longest, single = letters[:_LONG], [id for id in letters if len(tokens[id]) == 1]
        quotes = [id for _, id in ranked if tokens[id][0] == _QUOTE]
        order = [id for _, id in ranked]
        self._order = np.array(order, np.int64)  # candidates, best first
        # The same inside a text, where a bracket closes nothing.
        self._text_order = np.array(list(dict.fromkeys([*quotes, *longest, *order])), np.int64)
        self._single = np.array(single, np.int64)
        self._blank = np.array([not text.strip() for text in tokens], bool)
        self.ends = tuple(tokenizer.eos_tokens) if tokenizer else ()

    def find(
        self,
        matcher: LLMatcher,
        room: int,
        limit_s: float,
        allowed: np.ndarray | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> list[int] | None:
        """Return at most `room` tokens that complete the answer, or None if none were found in
        time. The matcher is left as it was.

        limit_s: by the clock, which is the time that this thread computes: a busy machine does not
        change what is found. allowed: u8[V / 8], bits of the tokens that any answer may have.
        """
        until_s = clock() + limit_s
        for patient, most in ((False, _SHORT_SEARCHES), (True, _SEARCHES)):
            waiting = deque([list[int]()])
            for _ in range(most):
                if not waiting or clock() > until_s:
                    break
                walk = _Walk(self, matcher.deep_copy(), waiting.popleft(), allowed)
                if (
                    walk.close(2 * room, until_s, clock, patient)
                    and len(way := self._joined(walk.tokens, matcher)) <= room
                ):
                    return way
                waiting += walk.others
        return None

    def _joined(self, way: list[int], matcher: LLMatcher) -> list[int]:
        """Return the tokens that the tokenizer has for the text of a way, if they are fewer."""
        assert self._tokenizer is not None
        tokens = self._tokenizer.tokenize_bytes(self._tokenizer.decode_bytes(way))
        if len(tokens) >= len(way):
            return way
        follower = matcher.deep_copy()
        follows = follower.try_consume_tokens(tokens) == len(tokens) and follower.is_accepting()
        return tokens if follows else way

    def candidates(self, mask: bytes, allowed: np.ndarray | None) -> list[int]:
        """Return tokens that may come next, the likeliest to close first."""
        bits = np.frombuffer(mask, np.uint8)
        if allowed is not None:
            bits = bits[: len(allowed)] & allowed
        flags = np.unpackbits(bits, bitorder="little")
        flags[list(self.ends)] = 0
        text = flags[self._single].sum() >= _ALPHABET
        order = self._text_order if text else self._order
        known = order[flags[order] > 0]
        if len(known) < _FEW:
            flags[known] = 0
            known = np.concatenate([known, np.flatnonzero(flags)[:_TRIED]])
        words = known[~self._blank[known]]
        return (words if len(words) else known)[:_TRIED].tolist()


class _Walk:
    """One greedy way."""

    def __init__(
        self,
        closings: Closings,
        matcher: LLMatcher,
        begun: list[int],
        allowed: np.ndarray | None,
    ) -> None:
        self._closings = closings
        self._matcher = matcher
        self._allowed = allowed
        self._possible = matcher.try_consume_tokens(begun) == len(begun)
        self._dull: set[bytes] = set()  # masks that none of the candidates changed
        self.tokens = begun
        self.others: list[list[int]] = []  # ways with another choice than this one's

    def close(self, room: int, until_s: float, clock: Callable[[], float], patient: bool) -> bool:
        """Go on until the answer is complete; False if it is not within `room` tokens.

        patient: also while the same few tokens come again and again.
        """
        if not self._possible:
            return False
        branches = 0
        while not self._matcher.is_accepting():
            if len(self.tokens) >= room or clock() > until_s:
                return False
            if not patient and _circles(self.tokens):
                return False
            forced = [] if self._allowed is not None else self._matcher.compute_ff_tokens()
            if not forced:
                forced = self._next(branches < _BRANCHES)
                branches += 1
            if not forced or not self._matcher.consume_tokens(forced):
                return False
            self.tokens += forced
        return len(self.tokens) <= room

    def _next(self, branching: bool) -> list[int]:
        """Choose the first token after which other tokens may come than before, if there is one."""
        mask = self._matcher.compute_bitmask()
        options = self._closings.candidates(mask, self._allowed)
        if not options:
            return []
        chosen = options[0]
        if mask not in self._dull:
            chosen = next((each for each in options if self._changes(each, mask)), -1)
            if chosen < 0:
                self._dull.add(mask)
                chosen = options[0]
        if branching:
            others = [each for each in options if each != chosen][:_OTHERS]
            self.others += [[*self.tokens, each] for each in others]
        return [chosen]

    def _changes(self, token: int, mask: bytes) -> bool:
        if not self._matcher.consume_token(token):
            return False
        changed = self._matcher.is_accepting() or self._matcher.compute_bitmask() != mask
        self._matcher.rollback(1)
        return changed


def _circles(tokens: list[int]) -> bool:
    last = tokens[-_CIRCLED:]
    return len(last) == _CIRCLED and any(
        last[period:] == last[:-period] for period in range(1, _CIRCLED // 3)
    )


def _rank(text: bytes) -> tuple[int, int, int] | None:
    """Return the place of a token among the candidates, less first; None: it is none."""
    if text == b'""':
        return 0, 0, 0
    if len(text) > _LONGEST_WORD and text[0] not in _CLOSING:
        return None  # most are such
    if text and not text.translate(None, _CLOSING):
        return 1, -sum(byte in _CLOSERS for byte in text), -len(text)
    if text in (b"{}", b"[]"):
        return 2, 0, 0
    if text in _WORDS:
        return 5, 0, 0
    if len(text) == 1 and 0x20 < text[0] < 0x7F and text != b"\\":
        return 3 if text in b",:" else 4 if text.isdigit() else 6 + text.isalpha(), 0, text[0]
    return None
