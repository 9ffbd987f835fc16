"""Schemas as people's generators write them are compiled, and allow nothing that breaks them."""

from __future__ import annotations

import json
from datetime import date
from functools import cache
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from model_server.grammars.constraint import Constraint, read_constraint
from sax.errors import InvalidRequest
from tests.each_case import each_case


@cache
def tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def allows(schema: dict[str, Any], *texts: str) -> list[bool]:
    """Whether each text is an answer under the schema."""
    grammar = read_constraint(Constraint("json_schema", json.dumps(schema)), {}).grammar
    matcher = LLMatcher(tokenizer(), grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    found: list[bool] = []
    for text in texts:
        each = matcher.deep_copy()
        tokens = list(text.encode())
        followed = each.validate_tokens(tokens) == len(tokens)
        found.append(followed and each.consume_tokens(tokens) and each.is_accepting())
    return found


FORMATS = (  # of pydantic, of zod, and of the standard
    *("password", "path", "binary", "base64url", "uuid4", "ipvanyaddress", "json-string"),
    *("base64", "jwt", "cuid2", "ulid", "e164", "cidrv4"),
    *("uri-reference", "iri", "idn-email", "json-pointer", "regex", "uri-template"),
)
FLOAT32 = 3.4028234663852886e38


@each_case("name", FORMATS)
def test_a_format_that_says_nothing_to_the_compiler_is_an_annotation(name: str) -> None:
    assert allows({"type": "string", "format": name}, '"a"', "1") == [True, False]


@each_case(
    "schema, right, wrong",
    [
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "-9", "1.5"),
        ({"type": "integer", "minimum": -(2**63)}, "-9", '"a"'),
        ({"type": "number", "minimum": -FLOAT32, "maximum": FLOAT32}, "-9.5", '"a"'),
        ({"propertyNames": {"enum": ["a", "b"]}, "type": "object"}, '{"a":1}', '{"c":1}'),
        ({"propertyNames": {"const": "a"}, "additionalProperties": {"type": "null"}},
         '{"a":null}', '{"a":1}'),
        ({"$ref": "#item", "$defs": {"i": {"$anchor": "item", "type": "integer"}}}, "7", '"a"'),
        ({"properties": {"format": {"type": "integer"}}, "required": ["format"]},
         '{"format":1}', '{"format":"x"}'),
        ({"type": ["string", "null"], "format": "date"}, "null", '"2023-02-29"'),
        ({"const": {"format": "path"}}, '{"format":"path"}', "1"),
    ],
)  # fmt: skip
def test_what_generators_write_is_compiled(schema: dict[str, Any], right: str, wrong: str) -> None:
    assert allows(schema, right, wrong) == [True, False]


BOUNDS = st.sampled_from([-2.5, -2, -1, -0.5, 0, 0.25, 0.5, 1, 1.5, 2, 10, 10.5])
NUMBERS = ("0", "-0", "0.0", "-0.0", "1", "1.0", "-1", "0.5", "-0.5", "2", "0.1", "-0.1", "0.3")
NUMBERS += ("1.25", "2.5", "-2.5", "-2", "-2.0", "-2.25", "10", "10.5", "10.25", "11", "0.26")


@given(
    st.dictionaries(st.sampled_from(["minimum", "exclusiveMinimum"]), BOUNDS, max_size=1),
    st.dictionaries(st.sampled_from(["maximum", "exclusiveMaximum"]), BOUNDS, max_size=1),
    st.sampled_from(["number", "integer"]),
)
def test_numbers_are_allowed_within_their_bounds_alone(
    low: dict[str, Any], high: dict[str, Any], kind: str
) -> None:
    schema = {"type": kind, **low, **high}
    try:
        allowed = allows(schema, *NUMBERS)
    except (InvalidRequest, AssertionError):
        assert not [each for each in NUMBERS if valid(schema, each)], "some number is within"
        return
    for text, each in zip(NUMBERS, allowed, strict=True):
        assert not each or valid(schema, text), text
        plain = "." not in text and "-0" not in text
        assert each or not plain or not valid(schema, text), text


def valid(schema: dict[str, Any], text: str) -> bool:
    whole = schema["type"] == "integer"
    value = json.loads(text)
    return jsonschema.Draft202012Validator(schema).is_valid(value) and not (whole and "." in text)


def test_an_exclusive_bound_is_not_a_number_within() -> None:
    half = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}
    assert allows(half, "0", "0.5", "0.25", "0.01") == [False, False, True, True]
    below = {"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}
    assert allows(below, "-0", "0", "-0.5", "-0.01") == [False, False, True, True]


def test_a_property_keeps_its_type_however_its_name_could_be_spelled() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    right, spelled, other = '{"a":1}', r'{"\u0061":"x"}', '{"b\\n":"x"}'
    assert allows(schema, right, spelled, other) == [True, False, True]
    assert allows({"enum": ["\x01"]}, r'"\u0001"') == [True]


@each_case("kind, rest", [("date", ""), ("date-time", "T23:59:60.5+01:00")])
def test_days_are_those_of_the_calendar(kind: str, rest: str) -> None:
    days = [f"{year}-{month:02}-{day:02}" for year in (1900, 2000, 2023, 2024, 2100)
            for month in (1, 2, 4, 12) for day in (1, 28, 29, 30, 31, 32)]  # fmt: skip
    texts = [f'"{day}{rest}"' for day in days]
    allowed = dict(zip(days, allows({"type": "string", "format": kind}, *texts), strict=True))
    assert {day for day in days if allowed[day]} == {day for day in days if is_day(day)}


def is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
