"""The table of request fields: complete, unambiguous, and bounded wherever a value can be large."""

import pytest

from sax.fields.field import Kind, RequestField, RequestRoute
from sax.fields.table import FIELDS, field, fields_of, most_values


def test_a_route_has_one_row_for_each_field() -> None:
    pairs = [(route, row.name) for row in FIELDS for route in row.routes]
    assert len(pairs) == len(set(pairs))
    assert all(field(route, name).name == name for route, name in pairs)


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: row.name)
def test_every_field_that_can_be_large_is_bounded(row: RequestField) -> None:
    if row.kind in (Kind.TEXT, Kind.TEXTS, Kind.PROMPTS, Kind.MAP):
        assert row.bytes
    if row.kind in (Kind.TEXTS, Kind.IDS, Kind.PROMPTS, Kind.MESSAGES, Kind.MAP):
        assert row.count
    if row.kind is Kind.PROMPTS:
        assert row.tokens


@pytest.mark.parametrize("route", RequestRoute)
def test_every_route_has_fields_and_a_bound_for_its_values(route: RequestRoute) -> None:
    assert fields_of(route)
    # A parser reads them in well under 100 ms: of JSON, or of a message with packed token ids
    assert most_values(route) < (320_000 if route.is_http else 600_000)
