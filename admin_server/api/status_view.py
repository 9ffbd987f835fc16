"""The status page's query string, parsed: which part of the lists to show. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sax.errors import InvalidRequest

_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    models: str = ""  # only models whose name, path, checkpoint or state contain this
    models_from: int = 0
    servers: str = ""  # only servers whose address, chips, tags or models contain this
    servers_from: int = 0
    limit: int = 100


_NUMBERS = {"models_from": 10**9, "servers_from": 10**9, "limit": _MOST}


def parse_view(query: Mapping[str, str]) -> StatusView:
    """Raises InvalidRequest naming the field at fault."""
    values: dict[str, Any] = {}
    for name, text in query.items():
        if name in ("models", "servers"):
            values[name] = text.lower()
        elif name in _NUMBERS:
            values[name] = _number(name, text)
        else:
            known = ", ".join(["models", "servers", *_NUMBERS])
            raise InvalidRequest(f"unknown field {name}: use {known}", param=name)
    return StatusView(**values)


def _number(name: str, text: str) -> int:
    digits = text.isascii() and text.isdigit() and len(text) < 12
    if not digits or int(text) > _NUMBERS[name]:
        raise InvalidRequest(f"{name} is {text[:40]!r}: use 0 to {_NUMBERS[name]}", param=name)
    return int(text)
