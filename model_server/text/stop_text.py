"""Stop strings and stop sequences: which text can be sent, and when an answer ends.

Pure. Text arrives in pieces of any size; where they are cut does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

ANY = 0  # in a sequence: any token, as in Saxml, which pads sequences with it


class StopText:
    """Passes text on up to the first stop string, holding back text that may be part of one.

    The first stop string to be completed ends the text; if several are completed by the same
    character, the longest one does.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """include: the text ends with the stop string, not before it."""
        self._include = include
        self._matchers = [_Matcher(stop) for stop in stops]
        self._firsts = frozenset(stop[0] for stop in stops)
        self._held = ""
        self.found: str | None = None  # the stop string that ended the text

    @property
    def matched(self) -> bool:
        return self.found is not None

    def push(self, piece: str) -> str:
        """Return the text that is safe to send now; "" after a match."""
        if not self._matchers:
            return piece
        if self.found is not None:
            return ""
        if not self._held and self._firsts.isdisjoint(piece):
            return piece
        text = self._held + piece
        for end, character in enumerate(piece, start=len(self._held) + 1):
            if found := self._longest_match(character):
                self.found, self._held = found, ""
                return text[: end if self._include else end - len(found)]
        safe = len(text) - max(matcher.length for matcher in self._matchers)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """Return the text held back, once nothing more follows."""
        held, self._held = self._held, ""
        return held

    def _longest_match(self, character: str) -> str:
        return max(
            [matcher.stop for matcher in self._matchers if matcher.push(character)],
            key=len,
            default="",
        )


class _Matcher:
    """Tracks how much of a stop string the text ends with (Knuth, Morris and Pratt).

    Amortised constant work per character of the text for any stop string, and none before: a stop
    string is read only as far as the text has matched it.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        # Of each beginning that was met: the longest proper prefix that is also a suffix.
        self._border = [0]

    def push(self, character: str) -> bool:
        """True once the stop string is complete."""
        self.length = self._extend(self.length, character)
        if self.length > len(self._border):
            self._border.append(self._extend(self._border[-1], self.stop[self.length - 1]))
        return self.length == len(self.stop)

    def _extend(self, length: int, character: str) -> int:
        while length and self.stop[length] != character:
            length = self._border[length - 1]
        return length + (self.stop[length] == character)


# Stop sequence: ends an answer at a sequence of tokens, by id.
#
# Pure. Constant work per token: bit n of the state says that the last n + 1 tokens are the first n
# + 1 of the sequence.


class StopSequence:
    def __init__(self, ids: Sequence[int]) -> None:
        """`ids` must not be empty."""
        self._length = len(ids)
        self._whole = 1 << (len(ids) - 1)
        self._any = sum(1 << place for place, token in enumerate(ids) if token == ANY)
        self._places = dict.fromkeys(ids, self._any)
        for place, token in enumerate(ids):
            self._places[token] |= 1 << place
        self._state = 0

    def follow(self, prompt: Sequence[int]) -> None:
        """Continue the prompt: a sequence may begin there."""
        for token in prompt[max(0, len(prompt) - self._length + 1) :]:
            self.push(token)

    def push(self, token: int) -> bool:
        """True if the tokens so far end with the sequence."""
        self._state = (self._state << 1 | 1) & self._places.get(token, self._any)
        return bool(self._state & self._whole)
