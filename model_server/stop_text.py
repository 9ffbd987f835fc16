"""Stop strings: which text may leave, and when the answer is over.

Pure. Text comes in pieces of any size; the outcome does not depend on how it was cut. Knows
nothing of tokens, sequences or engines.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Passes text on up to the first stop string, never a character that may belong to one.

    The first stop string to be complete ends the text; of several that are complete with the
    same character, the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._matchers = [_Matcher(stop) for stop in stops]
        self._held = ""
        self.matched = False

    def push(self, piece: str) -> str:
        """The text that is safe to send now; after a match nothing more."""
        if not self._matchers:
            return piece
        if self.matched:
            return ""
        text = self._held + piece
        for end, character in enumerate(piece, start=len(self._held) + 1):
            if found := self._longest_match(character):
                self.matched, self._held = True, ""
                return text[: end - found]
        safe = len(text) - max(matcher.length for matcher in self._matchers)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """The text held back, once it is certain that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _longest_match(self, character: str) -> int:
        longest = 0
        for matcher in self._matchers:
            if matcher.push(character):
                longest = max(longest, len(matcher.stop))
        return longest


class _Matcher:
    """How much of one stop string the text so far ends with (Knuth, Morris and Pratt).

    Constant work per character whatever the stop string: a request cannot slow the others.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._border = [0] * len(stop)  # longest proper prefix that is also a suffix
        for end in range(1, len(stop)):
            self._border[end] = self._extend(self._border[end - 1], stop[end])

    def push(self, character: str) -> bool:
        """True when the stop string is complete."""
        self.length = self._extend(self.length, character)
        return self.length == len(self.stop)

    def _extend(self, length: int, character: str) -> int:
        while length and self.stop[length] != character:
            length = self._border[length - 1]
        return length + (self.stop[length] == character)
