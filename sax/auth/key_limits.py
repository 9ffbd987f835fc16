"""The limits of a key: requests and tokens a minute, requests at once, and models.

As options of a line in the token file: `rpm=60 tpm=100000 concurrent=4 models=/sax/prod/*,smollm2`.
Gateways apply them (`http_gateway.limits`); admin servers and model servers read past them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from sax.errors import InvalidRequest

_MOST = 10**9
_MOST_PATTERNS = 100
# The letters of model names, and what globs add.
_PATTERN = re.compile(r"[a-z0-9_/*?\[\]!-]{1,200}")


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """None: no such limit; no patterns: every model."""

    rpm: int | None = None  # requests a minute
    tpm: int | None = None  # tokens a minute, of prompts and answers
    concurrent: int | None = None  # requests at once
    models: tuple[str, ...] = ()  # globs of full names, or of last components if without a slash

    @property
    def counted(self) -> bool:
        """True if requests of the key have to be counted."""
        return (self.rpm, self.tpm, self.concurrent) != (None, None, None)

    def allows(self, model_id: str) -> bool:
        last = model_id.rpartition("/")[2]
        return not self.models or any(
            fnmatchcase(model_id if "/" in pattern else last, pattern) for pattern in self.models
        )

    def __str__(self) -> str:
        """Format as options of a line; "" for no limits."""
        given = ((each.name, getattr(self, each.name)) for each in fields(self))
        return " ".join(f"{name}={_text(value)}" for name, value in given if value)


UNLIMITED = KeyLimits()


def _text(value: int | tuple[str, ...]) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def parse_options(words: Sequence[str]) -> KeyLimits:
    """Parse the options of a line. Raises InvalidRequest, which repeats no value: it may be a
    token that was put here by mistake."""
    found: dict[str, int | tuple[str, ...]] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in KeyLimits.__slots__ or "=" not in word:
            raise _wrong("an option is none of rpm=N, tpm=N, concurrent=N and models=GLOB,GLOB")
        if name in found:
            raise _wrong(f"{name}= is there twice: give it once")
        found[name] = parse_models(value) if name == "models" else _number(name, value)
    return KeyLimits(**found)  # pyright: ignore[reportArgumentType]


def parse_models(text: str) -> tuple[str, ...]:
    """Parse comma-separated globs. Raises InvalidRequest."""
    patterns = tuple(text.split(","))
    if len(patterns) > _MOST_PATTERNS or not all(map(_PATTERN.fullmatch, patterns)):
        raise _wrong(
            f"models= takes 1 to {_MOST_PATTERNS} globs of model names, separated by commas, e.g. "
            "models=/sax/prod/*,smollm2"
        )
    return patterns


def _number(name: str, text: str) -> int:
    good = text.isascii() and text.isdigit() and len(text) <= len(str(_MOST))
    if not good or not 1 <= int(text) <= _MOST:
        raise _wrong(
            f"{name}= takes a whole number from 1 to {_MOST}; to lock a key out, delete its line"
        )
    return int(text)


def _wrong(text: str) -> InvalidRequest:
    return InvalidRequest(text, param="tokens")
