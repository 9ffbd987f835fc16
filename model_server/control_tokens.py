"""Keeps what a user wrote from becoming a control token.

A chat template writes control tokens as text (`<|im_end|>`), so a message whose content holds the
same text would end its own turn. `guard` puts an escape mark before every such occurrence in a
message; `split` takes a rendered chat apart into control tokens and plain text, marks removed.
The mark is a Unicode noncharacter, which templates neither strip nor test for, and a mark in the
user's own text is escaped by another. Knows neither templates nor vocabularies.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

MARK = "\ufdd0"


class Piece(NamedTuple):
    """A stretch of a rendered chat."""

    text: str
    control: bool


class ControlTokens:
    """The texts that are control tokens of one model."""

    def __init__(self, texts: Collection[str]) -> None:
        # Longest first: the longest match wins, as in the tokenizer itself.
        self.texts = frozenset(filter(None, texts))
        longest = sorted(self.texts, key=len, reverse=True)
        either = "|".join(re.escape(text) for text in longest) or r"(?!)"
        self._occurrence = re.compile(f"{MARK}|(?={either})")
        self._part = re.compile(f"{MARK}(?P<literal>.?)|(?P<control>{either})", re.DOTALL)

    def guard(self, text: str) -> str:
        """The text with every control token in it marked as literal."""
        return self._occurrence.sub(lambda match: MARK + match[0], text)

    def split(self, rendered: str) -> Iterator[Piece]:
        """Control tokens and the plain text between them, in order, marks removed."""
        plain: list[str] = []
        end = 0
        for match in self._part.finditer(rendered):
            plain.append(rendered[end : match.start()])
            end = match.end()
            if match["control"] is None:
                plain.append(match["literal"])
                continue
            if text := "".join(plain):
                yield Piece(text, control=False)
            plain.clear()
            yield Piece(match["control"], control=True)
        if text := "".join(plain) + rendered[end:]:
            yield Piece(text, control=False)
