"""Finds where a JSON object ends in a text that comes in pieces."""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class JsonScan:
    """Follows brackets and texts only: whoever reads the object checks the rest."""

    def __init__(self, depth: int = 0) -> None:
        """depth: brackets that are open already."""
        self.complete = False
        self._depth = depth
        self._inside = False  # a text
        self._escaped = False

    def end(self, text: str, at: int) -> int:
        """Return the place up to which the text belongs to the object."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_INSIDE if self._inside else _OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._step(found[0])
            if self.complete:
                return at
        return at

    def _step(self, character: str) -> None:
        if character == "\\":
            self._escaped = True
        elif character == '"':
            self._inside = not self._inside
        elif character in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            self.complete = self._depth <= 0
