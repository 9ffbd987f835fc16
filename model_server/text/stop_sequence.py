"""Stop sequence: ends an answer at a sequence of tokens, by id.

Pure. Constant work per token: bit n of the state says that the last n + 1 tokens are the first
n + 1 of the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

ANY = 0  # in a sequence: any token, as in Saxml, which pads sequences with it


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
