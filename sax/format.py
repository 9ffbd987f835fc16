"""Format figures and lists for people, in messages and tables."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from itertools import islice

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_NAMED = 4  # items a sentence lists


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
