"""Reads the JSON text of an override's value, and says how a value that is none is written."""

from __future__ import annotations

import json
from typing import Any

from sax.errors import InvalidRequest
from sax.format import quoted, shortened

_PYTHON = {"None": "null", "True": "true", "False": "false"}


def read_json(key: str, text: str) -> Any:
    """Return the value. Raises InvalidRequest naming the override."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"override {quoted(key)}={shortened(text)} is not JSON: {json_remedy(text)}",
            param=f"overrides.{key}",
        ) from error


def json_remedy(text: str, example: str = '"bfloat16"') -> str:
    """Return what to write instead of a value that is not JSON."""
    if meant := _PYTHON.get(text.strip()):
        return f"write {meant}"
    return f"strings need double quotes, as in {example}; numbers, true, false and null do not"
