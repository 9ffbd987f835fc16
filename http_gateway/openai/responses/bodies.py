"""Description of the body of /v1/responses, and of the path of a stored one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from http_gateway.images.image_schema import DETAIL, url_schema
from http_gateway.openai.prompts import texts_schema
from http_gateway.openai.responses.conversation import IMAGE_PART, ROLES
from http_gateway.openai.responses.schema import (
    INCLUDED,
    LABELS,
    STREAM_OPTIONS_UNCHANGED,
    UNCHANGED,
    ResponseRequest,
)
from http_gateway.openai.tools import FUNCTION_NAME_PATTERN
from http_gateway.openapi import RequestBody, Schema, one_of
from sax.fields.field import RequestRoute
from sax.fields.table import field

_NULL: Schema = {"type": "null"}
_STATUS: Schema = {"enum": [None, "completed", "incomplete", "in_progress"]}


def _text(name: str) -> Schema:
    return {"type": "string", "maxLength": field(RequestRoute.RESPONSES, name).bytes}


def _object(needed: Mapping[str, Schema], others: Mapping[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**needed, **(others or {})},
        "required": [*needed],
        "additionalProperties": False,
    }


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, _NULL]}


def _parts(kinds: list[str], least: int = 1) -> Schema:
    part = _object({"type": {"enum": kinds}, "text": _text("input.content")})
    most = field(RequestRoute.RESPONSES, "input.content").count
    return {"type": "array", "items": part, "minItems": least, "maxItems": most}


def _seen() -> Schema:
    """Return the schema of a user's content."""
    texts = _parts(["input_text", "output_text"])
    url = url_schema(RequestRoute.RESPONSES, "input.content.image_url")
    image = _object({"type": {"const": IMAGE_PART}, "image_url": url}, {"detail": DETAIL})
    texts["items"] = {"anyOf": [texts["items"], image]}
    return {"anyOf": [_text("input.content"), texts]}


def _input() -> Schema:
    content: Schema = {"anyOf": [_text("input.content"), _parts(["input_text", "output_text"])]}
    message = {"type": {"enum": ["message", None]}}
    common: dict[str, Schema] = {"id": _or_null(_text("input.id")), "status": _STATUS}
    call_id: Schema = {**_text("input.call_id"), "minLength": 1}
    kinds: list[Schema] = [
        _object(
            {"role": {"enum": [role for role in ROLES if role != "user"]}, "content": content},
            {**message, **common},
        ),
        _object({"role": {"const": "user"}, "content": _seen()}, {**message, **common}),
        _object(
            {
                "type": {"const": "function_call"},
                "call_id": call_id,
                "name": {"type": "string", "pattern": FUNCTION_NAME_PATTERN},
                "arguments": _text("input.arguments"),
            },
            common,
        ),
        _object(
            {"type": {"const": "function_call_output"}, "call_id": call_id, "output": content},
            common,
        ),
        _object(
            {"type": {"const": "reasoning"}},
            {
                **common,
                "content": _or_null(_parts(["reasoning_text"], 0)),
                "summary": _or_null(_parts(["summary_text"], 0)),
                "encrypted_content": {"enum": [None, ""]},
            },
        ),
    ]
    most = field(RequestRoute.RESPONSES, "input").count
    items: Schema = {
        "type": "array",
        "items": {"anyOf": kinds},
        "minItems": 1,
        "maxItems": most,
    }
    return {"anyOf": [_text("input"), items]}


def _format() -> Schema:
    schema = _object(
        {"type": {"const": "json_schema"}, "schema": {"type": "object"}},
        {"name": {"type": "string"}, "description": {}, "strict": {}},
    )
    plain = _object({"type": {"enum": ["text", "json_object"]}})
    return _or_null({"anyOf": [plain, schema]})


def _tools() -> Schema:
    tool = _object(
        {
            "type": {"const": "function"},
            "name": {"type": "string", "pattern": FUNCTION_NAME_PATTERN},
        },
        {
            "description": _or_null(_text("tools.description")),
            "parameters": {"type": ["object", "null"]},
            "strict": {"type": ["boolean", "null"]},
        },
    )
    most = field(RequestRoute.RESPONSES, "tools").count
    return _or_null({"type": "array", "items": tool, "maxItems": most})


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_CHOICE: Schema = {
    "anyOf": [
        {"enum": [None, "auto", "none", "required"]},
        _object({"type": {"const": "function"}, "name": {"type": "string"}}),
    ]
}
_REASONING: Schema = _object(
    {},
    {
        "effort": {"enum": [None, *_EFFORTS]},
        **{name: one_of(()) for name in ("summary", "generate_summary")},
    },
)
_STREAM_OPTIONS: Schema = _object(
    {}, {name: one_of(values) for name, values in STREAM_OPTIONS_UNCHANGED.items()}
)


def _shared() -> dict[str, Any]:
    route = RequestRoute.RESPONSES
    return {
        "stop": texts_schema(route, "stop", optional=True),
        "bad_words": texts_schema(route, "bad_words", optional=True),
        "max_tokens": one_of(()),
    }


RESPONSE = RequestBody(
    model=ResponseRequest,
    route=RequestRoute.RESPONSES,
    unchanged=UNCHANGED,
    labels=LABELS,
    replaced={
        **_shared(),
        "input": _input(),
        "text": _or_null(
            _object({}, {"format": _format(), "verbosity": {"enum": [None, "medium"]}})
        ),
        "reasoning": _or_null(_REASONING),
        "tools": _tools(),
        "tool_choice": _CHOICE,
        "stream_options": _or_null(_STREAM_OPTIONS),
        "include": _or_null(
            {"type": "array", "items": {"enum": [*INCLUDED]}, "maxItems": len(INCLUDED)}
        ),
    },
)
ID: Schema = {
    "name": "response_id",
    "in": "path",
    "required": True,
    "description": "The id of a stored response.",
    "schema": {"type": "string", "minLength": 1},
}
