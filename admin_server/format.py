"""Format figures and lists for people, in the reasons the admin server gives."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from itertools import islice

_NAMED = 4  # items a sentence lists


def human_bytes(number: int) -> str:
    """1536 -> "1.5 KiB"."""
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{number} B"
        size /= 1024
    return f"{size:.1f} TiB"


def listing(words: Collection[str]) -> str:
    """The first few items, and how many more there are."""
    more = len(words) - _NAMED
    return ", ".join([*islice(words, _NAMED), *([f"and {more} more"] if more > 0 else [])])


def count(number: int, noun: str) -> str:
    """1, "server" -> "1 server"; 2 -> "2 servers"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clock_time(seconds: float) -> str:
    """hh:mm:ss in UTC."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def describe_paths(paths: Iterable[str]) -> str:
    """List model paths."""
    return listing(sorted(set(paths))) or "no path at all"
