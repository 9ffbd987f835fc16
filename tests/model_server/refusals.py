"""What a call is refused with, for tests that go through a table of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sax.errors import SaxError


class Refusal(NamedTuple):
    kind: type[SaxError] | None  # None: it was not refused
    param: str | None
    text: str


def refusal(call: Callable[..., object], *arguments: Any, **named: Any) -> Refusal:
    try:
        call(*arguments, **named)
    except SaxError as error:
        return Refusal(type(error), error.param, error.text)
    return Refusal(None, None, "")
