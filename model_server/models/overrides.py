"""Checks a publish's overrides against the keys that a model class declares.

As in Saxml, each key must exist on the class and each value is JSON of the same type as the value
it replaces, unless one of the two is null. Unlike Saxml, errors are never ignored. Saxml's own
classes take all that Saxml's do, as `sax.overrides` declares it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sax.errors import InvalidRequest
from sax.format import shortened
from sax.overrides.json_text import read_json
from sax.overrides.known_paths import unknown_override
from sax.overrides.saxml_overrides import read_saxml_overrides
from sax.overrides.saxml_parameter import Verdict
from sax.overrides.saxml_parameters import SAXML_PARAMETERS


def apply_overrides(
    defaults: Mapping[str, Any], overrides: Mapping[str, str], path: str = ""
) -> dict[str, Any]:
    """Return the class's values with overrides applied; path: of one of Saxml's classes.

    Raises InvalidRequest naming the key.
    """
    values, declared = dict(defaults), read_saxml_overrides(path, overrides)
    for key, text in overrides.items():
        if key in defaults:
            default = defaults[key]
            values[key] = (
                _in_kind(declared[key], default)
                if key in declared
                else _checked(key, text, default)
            )
        elif key not in declared or SAXML_PARAMETERS[key].verdict is Verdict.HONOURED:
            raise unknown_override(key, defaults)
    return values


def _checked(key: str, text: str, default: Any) -> Any:
    value = _in_kind(read_json(key, text), default)
    if value is not None and default is not None and type(value) is not type(default):
        raise InvalidRequest(
            f"override {key}={shortened(text)} is a {type(value).__name__}, expected "
            f"{type(default).__name__} like the default {json.dumps(default)}",
            param=f"overrides.{key}",
        )
    return value


def _in_kind(value: Any, default: Any) -> Any:
    """Return a whole number as a float where the default is one."""
    return float(value) if isinstance(default, float) and type(value) is int else value
