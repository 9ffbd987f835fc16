"""Checks a finished answer against its JSON Schema, for what no grammar could hold."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from referencing import Registry

# Knows no schema but those of the standard, so that nothing is fetched.
_NOWHERE: Any = Registry()
_LONGEST = 300  # characters of a message, which quotes the answer


def violation_of(schema: str, answer: str) -> str:
    """Return how an answer breaks a schema, in one line; "": it keeps to it.

    Takes time, memory and stack as schema and answer please. Raises ValueError for a schema that
    cannot be read as one.
    """
    known = json.loads(schema)
    try:
        value = json.loads(answer)
    except ValueError as exc:
        return f"it is no JSON: {exc}"
    try:
        validator = validator_for(known, default=Draft202012Validator)(known, registry=_NOWHERE)
        broken: Any = next(validator.iter_errors(value), None)
    except Exception as exc:  # the library raises what a schema makes it stumble over
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc
    if broken is None:
        return ""
    return f"{broken.json_path}: {broken.message}"[:_LONGEST]
