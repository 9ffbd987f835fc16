"""Pydantic constraints made from the table of request fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BeforeValidator, Field

from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute, longer, size_of
from sax.fields.table import FIELD_NAME_BYTES, MOST_FIELDS, field


def bounded(route: RequestRoute, name: str) -> BeforeValidator:
    """Refuse a text, list or object that is too large, before pydantic looks at its entries."""
    row = field(route, name)

    def check(value: object) -> object:
        row.check(value)
        return value

    return BeforeValidator(check)


def ranged(route: RequestRoute, name: str) -> Any:
    """Refuse a number outside the field's range."""
    row = field(route, name)
    return Field(ge=row.least, gt=row.above, le=row.most)


def sized(route: RequestRoute, name: str, least: int = 0) -> Any:
    """State the number of entries of a list, for the API's description."""
    return Field(min_length=least, max_length=field(route, name).count)


def check_names(fields: Mapping[str, object], at: str = "") -> None:
    """Raise InvalidRequest for an object with too many fields, or one with too long a name."""
    if len(fields) > MOST_FIELDS:
        raise InvalidRequest(
            f"{at or 'the body'} has {len(fields)} unknown fields; at most {MOST_FIELDS} are read: "
            "leave them out",
            param=at.rstrip(".") or "body",
        )
    for name in fields:
        if longer(name, FIELD_NAME_BYTES):
            raise InvalidRequest(
                f"{at}{name[:20]}... is a field name of {size_of(name)} bytes; the longest known "
                f"has fewer than {FIELD_NAME_BYTES}: leave it out",
                param=at.rstrip(".") or "body",
            )
