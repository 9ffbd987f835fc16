"""What is left of a schema allows all that the schema allows, and says what it leaves out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from model_server.grammars.constraint import Constraint, read_constraint
from model_server.grammars.weakened import plain_pattern
from sax.errors import InvalidRequest
from tests.model_server.grammars.test_constraint import allows

NAMED = {"C": {"enum": ["r", "g"], "title": "C", "type": "string"}}
PAIR = {"a": {"type": "integer"}, "b": {"type": "integer"}}
OBJECTS = ("{}", '{"a":1}', '{"b":1}', '{"a":1,"b":1}', '{"a":1,"c":1}', '{"r":1}', '{"abcd":1}')
ARRAYS = ("[]", "[1]", "[1,1,1]", "[1,1]", '["a"]', '["a",1]', '[1,"a",2]', '["a","a"]')
TEXTS = ('"b"', '"a"', '"aa"', '"ab"', '"Abcdefgh"', '"abcdefgh"', '"+."', '"+1.5"')
NAMES = ('{"x_a":"s"}', '{"x_a":1}', '{"ab":1}', '{"ab":"s"}', '{"a":"s"}')
ALL = (*OBJECTS, *NAMES, *ARRAYS, *TEXTS, "1", "1.5", "true", "null")
INTEGER = {"type": "integer"}
SET = {"type": "array", "uniqueItems": True}
NUMBER = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"  # pydantic's Decimal

# A schema -> the keywords by which its answers are checked; none: the grammar holds all of it.
CASES: tuple[tuple[dict[str, Any], set[str]], ...] = (
    (SET, {"uniqueItems"}),
    ({**SET, "uniqueItems": False}, set()),
    ({"type": "object", "properties": {"a": SET}}, {"uniqueItems"}),
    ({"anyOf": [SET, {"type": "null"}]}, {"uniqueItems"}),
    ({"type": "object", "propertyNames": {"pattern": "^[ab]$"}}, set()),
    ({"type": "object", "propertyNames": {"maxLength": 1}}, set()),
    ({"type": "object", "propertyNames": {"minLength": 2}}, set()),
    ({"type": "object", "propertyNames": {"$ref": "#/$defs/C"}, "$defs": NAMED}, set()),
    ({"type": "object", "propertyNames": {"format": "x"}}, set()),
    ({"type": "object", "propertyNames": {"not": {"const": "a"}}}, {"not"}),
    ({"type": "object", "propertyNames": {"pattern": "a"}, "properties": PAIR}, {"propertyNames"}),
    ({"type": "object", "minProperties": 1, "maxProperties": 1}, set()),
    ({"type": "object", "properties": PAIR, "minProperties": 1, "additionalProperties": False},
     set()),
    ({"type": "object", "properties": PAIR, "minProperties": 2, "additionalProperties": False},
     set()),
    ({"type": "object", "properties": PAIR, "maxProperties": 2, "additionalProperties": False},
     set()),
    ({"type": "object", "properties": PAIR, "minProperties": 2}, {"minProperties"}),
    ({"type": "object", "properties": PAIR, "maxProperties": 1}, {"maxProperties"}),
    ({"type": "array", "contains": {"type": "integer"}}, {"contains"}),
    ({"type": "array", "contains": {"type": "integer"}, "minContains": 2, "maxContains": 2},
     {"contains", "minContains", "maxContains"}),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, {"dependentRequired"}),
    ({"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}, {"dependentSchemas"}),
    ({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"if", "then"}),
    ({"type": "object", "if": {"required": ["a"]}}, set()),
    ({"type": "object", "then": {"required": ["a"]}}, set()),
    ({"not": {"type": "string"}}, set()),
    ({"not": {"type": ["string", "array"]}, "type": ["string", "null"]}, set()),
    ({"not": {"type": "integer"}}, {"not"}),
    ({"type": "string", "not": {"enum": ["a"]}}, {"not"}),
    ({"type": "array", "not": {"contains": {"type": "integer"}}}, {"not"}),
    ({"type": "object", "properties": {"a": {"not": {}}}}, set()),
    ({"type": "object", "properties": PAIR, "unevaluatedProperties": False}, set()),
    ({"type": "array", "prefixItems": [{}], "unevaluatedItems": False}, set()),
    ({"allOf": [{"type": "object", "properties": PAIR}], "unevaluatedProperties": False},
     {"unevaluatedProperties"}),
    ({"type": "string", "pattern": "^(?=.*[A-Z]).{8,}$"}, {"pattern"}),
    ({"type": "string", "pattern": NUMBER}, {"pattern"}),
    ({"type": "string", "pattern": r"^(a)\1$"}, {"pattern"}),
    ({"type": "object", "patternProperties": {"^(?!x_)": INTEGER}}, {"patternProperties"}),
    ({"type": "object", "patternProperties": {"^(?!x_)": INTEGER}, "additionalProperties": False},
     {"patternProperties"}),
    ({"type": "object", "patternProperties": {"^(?!x_)": INTEGER, "^x_": {"type": "string"}},
      "additionalProperties": False}, {"patternProperties"}),
    ({"type": "object", "patternProperties": {"^(?=a)": INTEGER, "^(?=x)": {"type": "string"}}},
     {"patternProperties"}),
    ({"type": "object", "patternProperties": {"^(?!x_)": INTEGER}, "additionalProperties": False,
      "properties": {"x_a": {"type": "string"}}}, {"patternProperties"}),
    ({"type": "object", "patternProperties": {r"^(.)\1": INTEGER}}, {"patternProperties"}),
    ({"type": "object", "properties": PAIR, "required": ["a", "a"], "minProperties": 2},
     {"minProperties"}),
    ({"type": "object", "properties": PAIR, "minProperties": 1.0}, {"minProperties"}),
    ({"type": "array", "contains": INTEGER, "minItems": 1.0}, {"contains"}),
    ({"type": "object", "propertyNames": {"maxLength": 1.0}}, set()),
    ({"type": "object", "propertyNames": {"const": "a", "enum": ["b"]}}, {"propertyNames"}),
    ({"type": "array", "contains": {"const": 1}, "unevaluatedItems": False},
     {"contains", "unevaluatedItems"}),
    ({"type": "integer", "not": {"type": "number"}}, {"not"}),
    ({"not": {"type": "number"}}, set()),
    ({"type": "string", "pattern": "^(?=a)?b"}, {"pattern"}),
    ({"type": "string", "pattern": r"\bb"}, {"pattern"}),
    ({"type": "array", "$dynamicAnchor": "node", "items": {"$dynamicRef": "#node"}}, set()),
)  # fmt: skip


def test_the_grammar_allows_every_valid_answer_and_where_nothing_is_left_out_no_other() -> None:
    wrong: list[object] = []
    for schema, dropped in CASES:
        read = read_constraint(Constraint("json_schema", json.dumps(schema)), {})
        valid = [Draft202012Validator(schema).is_valid(json.loads(text)) for text in ALL]
        allowed = allows(schema, *ALL)
        if read.dropped != dropped:
            wrong.append((schema, set(read.dropped)))
        for text, is_valid, is_allowed in zip(ALL, valid, allowed, strict=True):
            if is_valid > is_allowed or (not dropped and is_valid != is_allowed):
                wrong.append((schema, text, is_allowed))
    assert wrong == []


def test_what_is_left_is_as_strict_as_it_can_be() -> None:
    for schema, text in (
        ({"type": "array", "contains": {"type": "integer"}}, "[]"),
        ({"type": "array", "contains": True, "minContains": 2}, "[1]"),
        ({"type": "string", "pattern": "^(?=.*[A-Z]).{8,}$"}, '"Abc"'),
        ({"type": "string", "pattern": NUMBER}, '"one"'),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, '["a"]'),
    ):
        assert allows(schema, text) == [False], schema


def test_a_schema_that_denies_everything_is_refused() -> None:
    for schema in ({"not": {}}, {"not": True}):
        with pytest.raises(InvalidRequest, match="denies everything"):
            allows(schema)


def test_a_pattern_is_left_without_what_looks_around() -> None:
    for pattern, left in (
        ("^[a(?=b)]$", "^[a(?=b)]$"),
        (r"^\(?=x$", r"^\(?=x$"),
        ("^(?!(a|b(?=c)))x(y)$", "^x(y)$"),
        ("(?<=a)b(?<!c)d(?:e)", "bd(?:e)"),
        ("(?=a)*b(?!c)+d", "(?:)*b(?:)+d"),
        ("(?=(?!x)*y)?z", "(?:)?z"),
        (r"\ba(?!\b)\B?[\b]", r"a(?:)?[\b]"),
        ("[(?=a)", "[(?=a)"),
        (r"^(.)\1$", None),
        (r"^\\1$", r"^\\1$"),
    ):
        assert plain_pattern(pattern) == left, pattern
