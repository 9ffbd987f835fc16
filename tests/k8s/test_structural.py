"""Structural schemas: what is unknown is refused, but where it is said to be kept."""

from __future__ import annotations

from typing import Any

import jsonschema

from tests.each_case import each_case
from tests.k8s.structural import check_lists, strict, with_defaults

TEXT = {"type": "string"}


def thing(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def accepts(schema: dict[str, Any], value: Any, root: bool = False) -> bool:
    return jsonschema.Draft4Validator(strict(schema, root=root)).is_valid(value)


@each_case(
    "schema, value, good",
    [
        (thing(a=TEXT), {"a": "x"}, True),
        (thing(a=TEXT), {"b": "x"}, False),
        (thing(a=thing(b=TEXT)), {"a": {"c": "x"}}, False),
        ({"type": "object"}, {"a": 1}, False),
        ({"type": "object", "additionalProperties": TEXT}, {"a": "x"}, True),
        ({"type": "object", "additionalProperties": TEXT}, {"a": 1}, False),
        ({"type": "object", "additionalProperties": thing(a=TEXT)}, {"x": {"b": ""}}, False),
        ({"type": "array", "items": thing(a=TEXT)}, [{"b": 1}], False),
        ({**thing(a=TEXT), "nullable": True}, None, True),
        (thing(a=TEXT), {"a": None}, False),
        ({"x-kubernetes-int-or-string": True}, "25%", True),
        ({"x-kubernetes-int-or-string": True}, 1, True),
        ({"x-kubernetes-int-or-string": True}, 1.5, False),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, 0, False),
        ({"type": "string", "pattern": "^(?i)[a-z]+$"}, "ABC", True),
        ({"type": "string", "pattern": "^[a-z]+$"}, "ABC", False),
        ({"type": "string", "pattern": "^[a-z]+$"}, "abc\n", False),
        ({"type": "string", "pattern": r"^[a-z]+\$"}, "abc$", True),
    ],
)
def test_values_are_refused_as_servers_do(schema: dict[str, Any], value: Any, good: bool) -> None:
    assert accepts(schema, value) is good


def test_unknown_fields_are_kept_at_their_own_level_only() -> None:
    schema = {**thing(a=thing(b=TEXT)), "x-kubernetes-preserve-unknown-fields": True}
    assert accepts(schema, {"z": {"anything": 1}, "a": {"b": "x"}})
    assert not accepts(schema, {"a": {"z": 1}})


def test_a_whole_object_inside_has_what_every_object_has() -> None:
    schema = {**thing(spec=thing(a=TEXT)), "x-kubernetes-embedded-resource": True}
    whole = {"apiVersion": "v1", "kind": "K", "metadata": {}, "spec": {"a": "x"}}
    assert accepts(schema, whole)
    assert not accepts(schema, {**whole, "status": {}})
    assert not accepts(thing(spec=thing(a=TEXT)), whole)
    assert accepts(thing(spec=thing(a=TEXT)), whole, root=True)


def test_defaults_are_filled_in_also_within_defaults() -> None:
    inner = thing(b={"type": "string", "default": "x"}, c=TEXT)
    schema = thing(a={**inner, "default": {}}, items={"type": "array", "items": inner})
    assert with_defaults({"items": [{"c": "y"}]}, schema) == {
        "a": {"b": "x"},
        "items": [{"c": "y", "b": "x"}],
    }
    assert with_defaults({"a": {"b": "own"}}, schema) == {"a": {"b": "own"}}


def test_items_that_come_twice_are_found() -> None:
    a_set = {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"}
    a_map = {
        "type": "array",
        "items": thing(name=TEXT),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    schema = thing(s=a_set, m=a_map)
    assert list(check_lists({"s": ["a", "b"], "m": [{"name": "a"}]}, schema, "it")) == []
    twice = {"s": ["a", "a"], "m": [{"name": "a"}, {"name": "a", "v": 1}]}
    assert [each.where for each in check_lists(twice, schema, "it")] == ["it s", "it m"]
