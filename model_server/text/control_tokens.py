"""Keeps user text from becoming a control token.

A chat template writes control tokens as text (`<|im_end|>`), so a message that contains the same
text could end its own turn. `guard` puts an escape mark before every such occurrence in a message;
`split` cuts a rendered chat into control tokens and plain text, and removes the marks. The mark is
a Unicode noncharacter, which templates neither strip nor test for; a mark in the user's own text is
escaped by another.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

MARK = "\ufdd0"


class ChatPiece(NamedTuple):
    text: str
    control: bool


class ControlTokens:
    """The control tokens of one model, by their text."""

    def __init__(self, texts: Collection[str]) -> None:
        self.texts = frozenset(filter(None, texts))
        lengths: dict[str, set[int]] = defaultdict(set)
        for text in self.texts:
            lengths[text[0]].add(len(text))
        # Longest first: the longest match wins, as in the tokenizer itself. Vocabularies have
        # thousands of control tokens, so they are looked up by length, not tried one by one.
        self._lengths = {first: sorted(known, reverse=True) for first, known in lengths.items()}
        firsts = "".join(re.escape(first) for first in sorted(self._lengths))
        self._start = re.compile(f"[{MARK}{firsts}]")

    def guard(self, text: str) -> str:
        def marked(start: re.Match[str]) -> str:
            escape = start[0] == MARK or self._longest(text, start.start())
            return MARK + start[0] if escape else start[0]

        return self._start.sub(marked, text)

    def split(self, rendered: str) -> Iterator[ChatPiece]:
        plain: list[str] = []
        for text, control in self._parts(rendered):
            if not control:
                plain.append(text)
                continue
            if before := "".join(plain):
                yield ChatPiece(before, control=False)
            plain.clear()
            yield ChatPiece(text, control=True)
        if rest := "".join(plain):
            yield ChatPiece(rest, control=False)

    def _parts(self, rendered: str) -> Iterator[tuple[str, bool]]:
        done = look = 0
        while start := self._start.search(rendered, look):
            place = start.start()
            if start[0] == MARK:
                yield rendered[done:place] + rendered[place + 1 : place + 2], False
                done = look = place + 2
            elif control := self._longest(rendered, place):
                yield rendered[done:place], False
                yield control, True
                done = look = place + len(control)
            else:
                look = place + 1
        yield rendered[done:], False

    def _longest(self, text: str, start: int) -> str | None:
        for length in self._lengths.get(text[start], ()):
            if (candidate := text[start : start + length]) in self.texts:
                return candidate
        return None
