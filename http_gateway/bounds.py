"""Pydantic constraints made from the table of request fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field

from sax.errors import InvalidRequest
from sax.fields.field import Kind, RequestField, RequestRoute
from sax.fields.table import FIELD_NAME_LENGTH, MOST_FIELDS, field


def bounded(route: RequestRoute, name: str) -> BeforeValidator:
    """Refuse a text, list or object that is too large, before pydantic looks at its entries."""
    row = field(route, name)

    def check(value: object) -> object:
        value = whole(value) if row.kind is Kind.PROMPTS else value
        row.check(value)
        return value

    return BeforeValidator(check)


def whole(value: object) -> object:
    """Return 3.0 as 3, in a list too: JSON does not tell them apart, and pydantic's integers do."""
    if isinstance(value, list):
        entries = cast("list[object]", value)
        if float not in set(map(type, entries)):
            return entries
        # In one loop: a list may have as many entries as a prompt has tokens.
        return [int(e) if isinstance(e, float) and e.is_integer() else e for e in entries]
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(whole)


def ranged(route: RequestRoute, name: str) -> Any:
    """Refuse a number outside the field's range."""
    row = field(route, name)
    return Field(ge=row.least, gt=row.above, le=row.most)


def sized(route: RequestRoute, name: str, least: int = 0) -> Any:
    """State the number of entries of a list, for the API's description."""
    return Field(min_length=least, max_length=field(route, name).count)


def checked(route: RequestRoute, name: str) -> BeforeValidator:
    """Raise InvalidRequest, with the value and the range, for a wrong type or a value out of range,
    before pydantic looks at it."""
    row = field(route, name)

    def read(value: object) -> object:
        value = _from_json(row.kind, value)
        row.read(value)
        return value

    return BeforeValidator(read)


def setting(route: RequestRoute, name: str) -> Any:
    """Return the type of a field of the table, or null, that checks all that its row says."""
    row = field(route, name)
    made: Any = Annotated[_JSON_TYPES[row.kind](row), checked(route, name)]
    return made | None


def _from_json(kind: Kind, value: object) -> object:
    if kind in (Kind.INTEGER, Kind.IDS):
        return whole(value)
    if kind is Kind.TEXTS and isinstance(value, str):
        return [value]
    if kind is Kind.BIASES and isinstance(value, dict):
        biases = cast("dict[str, object]", value)
        return {_token(key): bias for key, bias in biases.items()}
    return value


def _token(key: str) -> object:
    """Return the number that a key of an object stands for, or the key. "01" is no number."""
    plain = len(key) < _DIGITS and key.isascii() and key.isdecimal() and str(int(key)) == key
    return int(key) if plain else key


_DIGITS = 20
_JSON_TYPES: dict[Kind, Callable[[RequestField], Any]] = {
    Kind.FLAG: lambda row: bool,
    Kind.INTEGER: lambda row: Annotated[int, Field(ge=row.least, gt=row.above, le=row.most)],
    Kind.NUMBER: lambda row: Annotated[float, Field(ge=row.least, gt=row.above, le=row.most)],
    Kind.TEXTS: lambda row: Annotated[list[str], Field(max_length=row.count)],
    Kind.IDS: lambda row: Annotated[
        list[Annotated[int, Field(ge=row.least, le=row.most)]], Field(max_length=row.count)
    ],
    Kind.BIASES: lambda row: Annotated[
        dict[int, Annotated[float, Field(ge=row.least, le=row.most)]], Field(max_length=row.count)
    ],
}


def check_names(fields: Mapping[str, object], at: str = "") -> None:
    """Raise InvalidRequest for an object with too many fields, or one with too long a name."""
    if len(fields) > MOST_FIELDS:
        raise InvalidRequest(
            f"{at or 'the body'} has {len(fields)} unknown fields; at most {MOST_FIELDS} are read: "
            "leave them out",
            param=at.rstrip(".") or "body",
        )
    for name in fields:
        if len(name) > FIELD_NAME_LENGTH:
            raise InvalidRequest(
                f"{at}{name[:20]}... is a field name of {len(name)} characters; at most "
                f"{FIELD_NAME_LENGTH} are read: leave it out",
                param=at.rstrip(".") or "body",
            )
