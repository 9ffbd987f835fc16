"""The table of request fields: complete, unambiguous, and bounded wherever a value can be large."""

from sax.fields.field import Kind, RequestRoute
from sax.fields.table import FIELDS, field, fields_of, most_values


def test_a_route_has_one_row_for_each_field() -> None:
    pairs = [(route, row.name) for row in FIELDS for route in row.routes]
    assert len(pairs) == len(set(pairs))
    assert all(field(route, name).name == name for route, name in pairs)


def test_every_field_that_can_be_large_is_bounded() -> None:
    large = (Kind.TEXT, Kind.TEXTS, Kind.PROMPTS, Kind.MAP)
    many = (Kind.TEXTS, Kind.IDS, Kind.PROMPTS, Kind.MESSAGES, Kind.MAP)
    assert not [row.name for row in FIELDS if row.kind in large and not row.bytes]
    assert not [row.name for row in FIELDS if row.kind in many and not row.count]
    assert not [row.name for row in FIELDS if row.kind is Kind.PROMPTS and not row.tokens]


def test_every_route_has_fields_and_a_bound_for_its_values() -> None:
    assert not [route for route in RequestRoute if not fields_of(route)]
    # A parser reads them in well under 100 ms: of JSON, or of a message with packed token ids
    most = {route: most_values(route) for route in RequestRoute}
    assert not {
        route: count
        for route, count in most.items()
        if count >= (320_000 if route.startswith("/") else 600_000)
    }
