"""Format figures and lists for people, in messages and tables."""

from __future__ import annotations

import re
import reprlib
import time
from collections.abc import Collection, Iterable
from itertools import islice

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_NAMED = 4  # items a sentence lists


LONGEST_QUOTE = 200  # characters of input that a message repeats
_LONG_WORD = re.compile(rf"\S{{{LONGEST_QUOTE + 1},}}")


def quoted(value: object) -> str:
    """Quote input in a message, as `repr` does, but only its start if it is long."""
    if isinstance(value, str):
        return repr(value) if len(value) <= LONGEST_QUOTE else f"{value[:_START]!r}{_rest(value)}"
    return shortened(_QUOTES.repr(value))


def shortened(text: str) -> str:
    """Return the text, or its start and its length if it is long."""
    return text if len(text) <= LONGEST_QUOTE else f"{text[:_START]}{_rest(text)}"


def on_one_line(text: str) -> str:
    """Replace what is not printable, line ends included."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def without_long_words(text: str) -> str:
    """Shorten every long word of a message: whatever it is, it is input."""
    return _LONG_WORD.sub(lambda word: shortened(word[0]), text)


def _rest(text: str) -> str:
    return f"... ({len(text)} characters)"


def _short_quotes() -> reprlib.Repr:
    quotes = reprlib.Repr()
    quotes.maxstring = quotes.maxother = quotes.maxlong = _START
    return quotes


_START = 160
_QUOTES = _short_quotes()  # looks at the start of a long list only


def human_bytes(number: int, digits: int = 2) -> str:
    """1536 -> "1.50 KiB"."""
    for size, unit in _UNITS:
        if abs(number) >= size:
            return f"{number / size:.{digits}f} {unit}"
    return f"{number} B"


def listing(items: Collection[str]) -> str:
    more = len(items) - _NAMED
    return ", ".join([*islice(items, _NAMED), *([f"and {more} more"] if more > 0 else [])])


def count(number: int, noun: str) -> str:
    """1, "server" -> "1 server"; 2 -> "2 servers"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clock_time(seconds: float) -> str:
    """hh:mm:ss in UTC."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def describe_paths(paths: Iterable[str]) -> str:
    return listing(sorted(set(paths))) or "no path at all"
