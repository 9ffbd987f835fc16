"""What the answer must be, in every spelling of OpenAI and vLLM."""

from __future__ import annotations

import json
from typing import Any

import pytest

from http_gateway.openai.schema import ChatRequest
from sax.errors import InvalidRequest
from sax.types import SamplingParams
from tests.each_case import each_case

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA)
TAG = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a>"]}
TREE = {"format": {"type": "const_string", "value": "yes"}}


def read(**fields: Any) -> SamplingParams:
    messages = [{"role": "user", "content": "Hi"}]
    request = ChatRequest.model_validate({"model": "m", "messages": messages, **fields})
    request.check()
    return request.sampling()


@each_case(
    "fields, name, value",
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
                }
            },
            "json_schema",
            TEXT,
        ),
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        ({"response_format": {"type": "text"}}, "json_object", False),
        ({"response_format": {"type": "structural_tag", **TAG}}, "structural_tag", TAG),
        ({"response_format": {"type": "structural_tag", **TREE}}, "structural_tag", TREE),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", TEXT),
        ({"structured_outputs": {"json": TEXT}}, "json_schema", TEXT),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", ("a", "b")),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "grammar", "root ::= x"),
        ({"structured_outputs": {"json_object": True}}, "json_object", True),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "structural_tag", TAG),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            "json_schema",
            json.dumps({**SCHEMA, "x-guidance": {"whitespace_flexible": False}}),
        ),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            "json_schema",
            json.dumps({"type": "object", "x-guidance": {"whitespace_flexible": False}}),
        ),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": False}},
            "regex",
            "a",
        ),
        ({"guided_json": SCHEMA}, "json_schema", TEXT),
        ({"guided_json": {}}, "json_schema", "{}"),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a", "b"]}, "choice", ("a", "b")),
        ({"guided_grammar": "root ::= x"}, "grammar", "root ::= x"),
    ],
)
def test_each_spelling_becomes_a_field_of_ours(
    fields: dict[str, Any], name: str, value: object
) -> None:
    found = getattr(read(**fields), name)
    assert (json.loads(found) if name == "structural_tag" else found) == value


@each_case(
    "fields, param",
    [
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"backend": "x"}}, "structured_outputs.backend"),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
        ),
        (
            {"structured_outputs": {"json": "{", "disable_any_whitespace": True}},
            "structured_outputs.json",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": 1}},
            "structured_outputs.disable_any_whitespace",
        ),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}},
            "response_format.json_schema.x",
        ),
        ({"structured_outputs": {"regex": "a" * 5000}}, "structured_outputs.regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(**fields)
    assert refused.value.param == param
