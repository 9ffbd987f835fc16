"""Where two texts begin and end alike, but not inside a tag. Pure."""

from __future__ import annotations

import re
from os.path import commonprefix

_TAG = re.compile(r"<[^<>\n]*>|\[[^\[\]\s]*\]")


def shared_end(one: str, other: str) -> str:
    """Return the end that two texts share, not from within a tag."""
    length = len(commonprefix([one[::-1], other[::-1]]))
    for text in (one, other):
        start = len(text) - length
        length = len(text) - _behind_tag(text, start)
    return one[len(one) - length :] if length else ""


def shared_start(one: str, other: str) -> str:
    """Return the start that two texts share, not into a tag."""
    length = len(commonprefix([one, other]))
    for text in (one, other):
        length = boundary(text, length)
    return one[:length]


def boundary(text: str, place: int) -> int:
    """Return the start of the tag that a place is inside of, or the place."""
    return next((t.start() for t in _TAG.finditer(text) if t.start() < place < t.end()), place)


def _behind_tag(text: str, place: int) -> int:
    return next((t.end() for t in _TAG.finditer(text) if t.start() < place < t.end()), place)
