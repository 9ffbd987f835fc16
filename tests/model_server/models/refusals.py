"""Tables of what is refused, and of the words that say why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from sax.errors import SaxError


def refused_otherwise(
    make: Callable[[Any], object], cases: Iterable[tuple[Any, str]], error: type[SaxError]
) -> dict[str, str]:
    """What is told of each case that is not refused with its words, a pattern."""
    wrong: dict[str, str] = {}
    for given, words in cases:
        try:
            make(given)
        except error as refused:
            if not re.search(words, refused.text):
                wrong[repr(given)] = refused.text
        else:
            wrong[repr(given)] = "nothing: it is taken"
    return wrong
