"""Override texts from a publish, checked against what a model class declares.

As in Saxml: each key must exist on the class, each value is JSON and keeps the type of the value
it replaces, unless one of the two is null. Unlike Saxml nothing wrong is passed over.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from sax.errors import InvalidRequest


def apply_overrides(defaults: Mapping[str, Any], overrides: Mapping[str, str]) -> dict[str, Any]:
    """The class's values with the overrides in place. Raises InvalidRequest naming the key."""
    values = dict(defaults)
    for key, text in overrides.items():
        if key not in defaults:
            raise InvalidRequest(_unknown(key, defaults), param=f"overrides.{key}")
        values[key] = _checked(key, text, defaults[key])
    return values


def _unknown(key: str, defaults: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key.upper(), defaults, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown override {key!r}: {hint}this model takes {', '.join(sorted(defaults))}"


def _checked(key: str, text: str, default: Any) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"override {key}={text} is not JSON ({error.msg}): strings need double quotes",
            param=f"overrides.{key}",
        ) from error
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if value is not None and default is not None and type(value) is not type(default):
        raise InvalidRequest(
            f"override {key}={text} is a {type(value).__name__}, expected "
            f"{type(default).__name__} like the default {json.dumps(default)}",
            param=f"overrides.{key}",
        )
    return value
