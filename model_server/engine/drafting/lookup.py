"""Predicts the next tokens of one sequence from what followed its last tokens earlier. Pure.

Answers repeat their prompts and themselves: quotations, code that is edited, lists, names. A table
says where each run of three tokens occurred last. The place that it names is followed for as long
as its tokens are those that come, so a long repetition is looked up once. Each token is taken in
once, at the cost of one look into the table.
"""

from __future__ import annotations

from model_server.engine.drafting.odds import Odds

REACH = 8192  # tokens before the first lookup that it reads, at most
_BITS = 20  # of a token in a key; larger vocabularies may collide, which costs a wrong draft token
_KEY = (1 << 3 * _BITS) - 1


class Lookup:
    """The table of one sequence, and what it predicts now."""

    def __init__(self, tokens: list[int], prompt: int, odds: Odds) -> None:
        """tokens: the sequence's own list, which grows; the first `prompt` are not predictions."""
        self._tokens = tokens
        self._prompt = prompt
        self._odds = odds
        self._read = max(0, len(tokens) - REACH)  # tokens taken in
        self._after: dict[int, int] = {}  # three tokens -> index of the one that followed last
        self._key = _KEY  # of no tokens
        self._next = -1  # index of the token that is expected to come again; -1: none
        self._run = 0  # predictions in a row that were right
        self._media = False  # some tokens are those of images

    @property
    def behind(self) -> int:
        """Tokens not taken in yet."""
        return len(self._tokens) - self._read

    def read(self, most: int) -> int:
        """Take in new tokens, at most so many; return their number."""
        first = self._read
        self._read = min(len(self._tokens), first + most)
        for index in range(first, self._read):
            self._take(index, self._tokens[index])
        return self._read - first

    def _take(self, index: int, token: int) -> None:
        expected, self._media = self._next, self._media or token < 0
        right = expected >= 0 and self._tokens[expected] == token
        if expected >= 0 and index >= self._prompt:
            self._odds.note(self._run, right)
        self._key = (self._key << _BITS | token) & _KEY
        if right:
            self._next, self._run = expected + 1, self._run + 1
        else:
            self._next, self._run = self._after.get(self._key, -1), 0
        self._after[self._key] = index + 1

    def chances(self, most: int, sure: tuple[int, ...] = ()) -> list[float]:
        """Return for each next draft token the chance that it and those before it are right.

        sure: tokens that surely come next, which are predicted whatever came earlier.
        """
        certain = [1.0] * min(len(sure), most)
        if most <= len(sure) or self._next < 0 or self.behind:
            return certain
        if sure and self._predicted(len(sure)) != sure:
            return certain
        most = self._reach(most) if self._media else most
        return certain + self._odds.of_runs(self._run + len(sure), most - len(sure))

    def _reach(self, most: int) -> int:
        """Return how many of the next tokens may be drafted: none from an image on."""
        first, known = self._next, len(self._tokens)
        for place in range(min(most, known - first)):
            if self._tokens[first + place] < 0:
                return place
        return most

    def draft_tokens(self, count: int, sure: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return so many of the next tokens, of which `chances` told the odds."""
        if count <= len(sure):
            return sure[:count]
        return sure + self._predicted(count)[len(sure) :]

    def _predicted(self, count: int) -> tuple[int, ...]:
        """Return so many of the next tokens; beyond the last known one they repeat."""
        first, known = self._next, len(self._tokens)
        return tuple(self._tokens[first + place % (known - first)] for place in range(count))
