"""Schemas that contain themselves are refused only if no JSON could keep to them."""

from __future__ import annotations

from typing import Any

from model_server.grammars.endless import endless
from tests.each_case import each_case


def node(required: list[str], **next_one: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"next": next_one}, "required": required}


HERE, NULL = {"$ref": "#"}, {"type": "null"}


@each_case(
    "schema",
    [
        {},
        node([], **HERE),
        node(["next"], anyOf=[HERE, NULL]),
        node(["next"], type="array", items=HERE),
        {"anyOf": [{"type": "integer"}, HERE]},
        {"type": ["array", "null"], "items": HERE, "minItems": 1},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}},
        {"$ref": "https://elsewhere/schema"},
        {"$ref": "#i", "$defs": {"i": {"$anchor": "i", "type": "object"}}},
        {"minProperties": 2, "type": "object", "additionalProperties": {"type": "null"}},
        node([], anyOf=[HERE]) | {"minProperties": 1},
        {"properties": {"a": NULL, "b": HERE}, "minProperties": 1, "additionalProperties": False}
        | {"type": "object"},
    ],
)
def test_what_can_end_is_let_through(schema: dict[str, Any]) -> None:
    assert endless(schema) is None


@each_case(
    "schema, reference",
    [
        (HERE, "#"),
        (node(["next"], **HERE), "#"),
        (node(["next"], type="array", items=HERE, minItems=1), "#"),
        (node(["next"], type="array", prefixItems=[HERE], minItems=1), "#"),
        (node(["next"], anyOf=[HERE, node(["next"], **HERE)]), "#"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            "#/$defs/a",
        ),
        ({"allOf": [{"type": "object"}, HERE]}, "#"),
        ({"type": "object", "additionalProperties": HERE, "minProperties": 1}, "#"),
        (
            {"properties": {"a": NULL, "b": HERE}, "minProperties": 2}
            | {"type": "object", "additionalProperties": False},
            "#",
        ),
        ({"$ref": "#i", "$defs": {"i": {"$anchor": "i", "$ref": "#i"}}}, "#i"),
        (
            {"type": "object", "additionalProperties": HERE, "required": ["any"]},
            "#",
        ),
    ],
)
def test_what_needs_itself_is_named(schema: dict[str, Any], reference: str) -> None:
    assert endless(schema) == reference


def test_many_names_of_one_part_and_long_chains_take_no_longer_than_they_are_long() -> None:
    chain = {f"c{n}": {"$ref": f"#/c{n + 1}"} for n in range(250)}
    shared = {"anyOf": [{"$ref": "#/c0"}] * 1000}
    names = [{"$ref": f"#{n}/B"} for n in range(500)]
    # Ten minutes if each name were followed for itself, over and over.
    schema = {"B": shared, **chain, "c250": {"type": "string"}, "allOf": names}
    assert endless(schema) is None
    assert endless(schema | {"c250": {"$ref": "#/B"}}) == "#/B"
