"""Checks a publish's overrides against the keys that a model class declares.

As in Saxml, each key must exist on the class and each value is JSON of the same type as the value
it replaces, unless one of the two is null. Unlike Saxml, errors are never ignored. Saxml's own
classes take all that Saxml's do, as `sax.overrides` declares it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from sax.errors import InvalidRequest
from sax.format import quoted, shortened
from sax.overrides.json_text import read_json
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
            raise InvalidRequest(_unknown(key, defaults), param=f"overrides.{key}")
    return values


def _unknown(key: str, defaults: Mapping[str, Any]) -> str:
    saxmls = SAXML_PARAMETERS.get(key)
    if saxmls is not None and (reason := saxmls.elsewhere):
        return f"override {key} has no effect here: {reason}"
    if key == "NUM_STAGES" and "ICI_MESH_SHAPE" in defaults:
        return (
            "override NUM_STAGES: a model of this kind has one stage; leave it out, or give its "
            "devices by ICI_MESH_SHAPE"
        )
    close = difflib.get_close_matches(key.upper(), defaults, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown override {quoted(key)}: {hint}this model takes {', '.join(sorted(defaults))}"


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
