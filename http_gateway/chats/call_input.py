"""The input of a call as an object, for API families that do not give it as a text."""

from __future__ import annotations

from typing import Any

import msgspec

INVALID_JSON = "INVALID_JSON"  # as Anthropic's documentation names what is no object


def call_input(text: str) -> dict[str, Any]:
    """Return the object; text that is none, as it was cut or is wrong, under INVALID_JSON."""
    try:
        value: object = msgspec.json.decode(text or b"{}")
    except (msgspec.DecodeError, RecursionError):
        value = None
    return {**value} if isinstance(value, dict) else {INVALID_JSON: text}
