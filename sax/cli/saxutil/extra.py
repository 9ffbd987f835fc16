"""The value of -extra: key:value pairs with commas between them."""

from __future__ import annotations

from sax.errors import InvalidRequest
from sax.format import quoted
from sax.saxml.options import ModelOptions

_QUOTES = ("'", '"')


def options_of(extra: str, timeout_s: float) -> ModelOptions:
    """Return the options that -extra and the time limit make.

    A quoted value is a text, a number a number, anything else a text. Raises InvalidRequest.
    """
    options = ModelOptions()
    options.SetTimeout(timeout_s)
    for pair in extra.split(",") if extra else ():
        key, colon, value = pair.partition(":")
        if not colon or ":" in value:
            raise InvalidRequest(
                f"{quoted(pair)} in -extra is no pair: write key:value,key:value, e.g. "
                "temperature:0.2,per_example_max_decode_steps:8",
                param="extra",
            )
        _set(options, key, value)
    return options


def _set(options: ModelOptions, key: str, value: str) -> None:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in _QUOTES:
        options.SetExtraInputString(key, value[1:-1])
        return
    try:
        options.SetExtraInput(key, float(value))
    except ValueError:
        options.SetExtraInputString(key, value)
