"""Flags as Go programs take them: `-n 3`, `-n=3`, `--n=3`, `-stream`, `-stream=false`.

Flags end at the first word that is none, or at `--`; a lone `-` is a word. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sax.errors import InvalidRequest
from sax.format import quoted


class WrongUsage(InvalidRequest):
    """The command line is not one of this command's."""


@dataclass(frozen=True, slots=True)
class GoFlag:
    """One flag: its name without dashes, its value when not given, and the reader of a value."""

    name: str
    default: Any
    help: str
    read: Callable[[str], Any] = str
    is_switch: bool = False  # may stand without a value


@dataclass(frozen=True, slots=True)
class ParsedFlags:
    values: Mapping[str, Any]  # of every flag, by name
    given: frozenset[str]  # those on the command line
    words: Sequence[str]  # behind the flags


def text_flag(name: str, help: str, default: str = "") -> GoFlag:
    return GoFlag(name, default, help)


def switch(name: str, help: str, *, default: bool = False) -> GoFlag:
    return GoFlag(name, default, help, read_switch, is_switch=True)


def number_flag(name: str, help: str, default: int = 0) -> GoFlag:
    return GoFlag(name, default, help, read_number)


def duration_flag(name: str, help: str, default: float) -> GoFlag:
    """A duration, in seconds once read."""
    return GoFlag(name, default, help, read_duration)


def parse_flags(flags: Sequence[GoFlag], words: Sequence[str]) -> ParsedFlags:
    """Split a command line into flags and words. Raises WrongUsage naming the flag."""
    known = {flag.name: flag for flag in flags}
    values = {flag.name: flag.default for flag in flags}
    given: set[str] = set()
    left = list(words)
    while left and _is_flag(left[0]):
        word = left.pop(0)
        if word == "--":
            break
        name, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
        flag = known.get(name)
        if flag is None:
            raise WrongUsage(f"{quoted(word)} is no flag here; {_names(flags)}", param=name)
        if not equals:
            text = _next_value(flag, left)
        values[name] = _value(flag, text)
        given.add(name)
    return ParsedFlags(values, frozenset(given), tuple(left))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _next_value(flag: GoFlag, left: list[str]) -> str:
    if flag.is_switch:
        return "true"
    if not left:
        raise WrongUsage(f"-{flag.name} needs a value: write -{flag.name}=VALUE", param=flag.name)
    return left.pop(0)


def _value(flag: GoFlag, text: str) -> Any:
    try:
        return flag.read(text)
    except ValueError as exc:
        raise WrongUsage(f"-{flag.name}={text}: {exc}", param=flag.name) from exc


def _names(flags: Sequence[GoFlag]) -> str:
    names = ", ".join(f"-{flag.name}" for flag in flags)
    return f"there are {names}" if names else "this command has none"


_SWITCH = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def read_switch(text: str) -> bool:
    if text not in _SWITCH:
        raise ValueError("write true or false")
    return _SWITCH[text]


def read_number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError("write a whole number") from None


_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|ms|s|m|h)")


def read_duration(text: str) -> float:
    """Return the seconds of a Go duration such as 60s, 1m30s or 1.5h."""
    if text == "0":
        return 0.0
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError("write a duration such as 60s, 1m30s or 500ms")
    return sum(float(part[1]) * _UNITS_S[part[2]] for part in parts)
