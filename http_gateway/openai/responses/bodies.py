"""Description of the body of /v1/responses, and of the path of a stored one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from http_gateway.images.image_link import DETAIL, url_schema
from http_gateway.openai.prompts import texts_schema
from http_gateway.openai.responses.conversation import IMAGE_PART
from http_gateway.openai.responses.schema import (
    INCLUDED,
    LABELS,
    REMARKS,
    STREAM_OPTIONS_UNCHANGED,
    SUMMARIES,
    UNCHANGED,
    ResponseRequest,
)
from http_gateway.openai.responses.tools import LEFT_OUT, MCP
from http_gateway.openai.tools import ALLOWED, FUNCTION_NAME_PATTERN, KINDS, MODES
from http_gateway.openapi import RequestBody, Schema, one_of
from sax.fields.field import RequestRoute
from sax.fields.table import field

_NULL: Schema = {"type": "null"}
_FLAG: Schema = {"type": ["boolean", "null"]}
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


def _calls(common: Mapping[str, Schema], content: Schema) -> list[Schema]:
    """Return the schemas of calls and of their outputs."""
    call_id: Schema = {**_text("input.call_id"), "minLength": 1}
    name: Schema = {"type": "string", "pattern": FUNCTION_NAME_PATTERN}
    others = {**common, "namespace": _or_null(name)}
    made: list[Schema] = []
    input = _text("input.arguments")
    arguments: Schema = {"anyOf": [input, {"type": "object"}, _NULL]}
    for kind, must, may in (
        ("function_call", {}, {"arguments": arguments}),
        ("custom_tool_call", {"input": input}, {}),
    ):
        called: dict[str, Schema] = {"type": {"const": kind}, "call_id": call_id, "name": name}
        told: dict[str, Schema] = {"type": {"const": f"{kind}_output"}, "call_id": call_id}
        made += [
            _object({**called, **must}, {**others, **may}),
            _object({**told, "output": content}, common),
        ]
    return made


def items_schema(*, most: int | None, least: int = 1) -> Schema:
    """Return the schema of a list of items."""
    content: Schema = {"anyOf": [_text("input.content"), _parts(["input_text", "output_text"])]}
    message = {
        "type": {"enum": ["message", None]},
        "phase": one_of(("commentary", "final_answer")),
    }
    refusal = _object({"type": {"const": "refusal"}, "refusal": _text("input.content")})
    parts = _parts(["input_text", "output_text"])
    parts["items"] = {"anyOf": [parts["items"], refusal]}
    said: Schema = {"anyOf": [_text("input.content"), parts]}
    common: dict[str, Schema] = {"id": _or_null(_text("input.id")), "status": _STATUS}
    kinds: list[Schema] = [
        _object(
            {"role": {"enum": ["system", "developer"]}, "content": content},
            {**message, **common},
        ),
        _object({"role": {"const": "assistant"}, "content": said}, {**message, **common}),
        _object({"role": {"const": "user"}, "content": _seen()}, {**message, **common}),
        *_calls(common, content),
        _object(
            {"type": {"const": "reasoning"}},
            {
                **common,
                "content": _or_null(_parts(["reasoning_text"], 0)),
                "summary": _or_null(_parts(["summary_text"], 0)),
                "encrypted_content": _or_null(_text("input.encrypted_content")),
            },
        ),
    ]
    kinds += [
        {"type": "object", "properties": {"type": {"const": kind}}, "required": ["type"]}
        for kind in ("mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response")
    ]
    return {"type": "array", "items": {"anyOf": kinds}, "minItems": least, "maxItems": most}


def _input() -> Schema:
    most = field(RequestRoute.RESPONSES, "input").count
    reference = _object({"id": _text("input.id")}, {"type": {"enum": ["item_reference", None]}})
    items = items_schema(most=most)
    items["items"]["anyOf"].append(reference)
    return {"anyOf": [_text("input"), items]}


def _format() -> Schema:
    schema = _object(
        {"type": {"const": "json_schema"}, "schema": {"type": "object"}},
        {"name": {"type": "string"}, "description": {}, "strict": {}},
    )
    plain = _object({"type": {"enum": ["text", "json_object"]}})
    return _or_null({"anyOf": [plain, schema]})


def _tools() -> Schema:
    def kind(name: str, own: Mapping[str, Schema]) -> Schema:
        named: Schema = {"type": "string", "pattern": FUNCTION_NAME_PATTERN}
        about = {"description": _or_null(_text("tools.description")), "defer_loading": _FLAG}
        return _object({"type": {"const": name}, "name": named}, {**about, **own})

    function = kind("function", {"parameters": {"type": ["object", "null"]}, "strict": _FLAG})
    custom = kind("custom", {"format": {"type": ["object", "null"]}})
    most = field(RequestRoute.RESPONSES, "tools").count
    many: Schema = {"type": "array", "items": {"anyOf": [function, custom]}, "maxItems": most}
    named = {"name": function["properties"]["name"], "tools": many}
    about = {"description": _or_null(_text("tools.description"))}
    namespace = _object({"type": {"const": "namespace"}, **named}, about)
    hosted: Schema = {
        "type": "object",
        "properties": {"type": {"enum": [*LEFT_OUT]}},
        "required": ["type"],
        "description": "Left out beside other tools: this server has none of its own.",
    }
    server: Schema = {
        "type": "object",
        "properties": {
            "type": {"const": MCP},
            "server_label": named["name"],
            "server_url": {"type": "string"},
        },
        "required": ["type", "server_label", "server_url"],
        "description": "Called where the operator lists its URL.",
    }
    kinds = [function, custom, namespace, hosted, server]
    return _or_null({"type": "array", "items": {"anyOf": kinds}, "maxItems": most})


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_NAMED: Schema = _object(
    {"type": {"enum": [*KINDS]}, "name": {"type": "string"}},
    {"namespace": {"type": ["string", "null"]}},
)
_ALLOWED: Schema = _object(
    {"type": {"const": ALLOWED}, "tools": {"type": "array", "items": _NAMED, "minItems": 1}},
    {"mode": {"enum": [*MODES]}},
)
_CHOICE: Schema = {"anyOf": [{"enum": [None, "auto", "none", "required"]}, _NAMED, _ALLOWED]}
_REASONING: Schema = _object(
    {},
    {
        "effort": {"enum": [None, *_EFFORTS]},
        **{name: {"enum": [None, *SUMMARIES]} for name in ("summary", "generate_summary")},
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
    remarks=REMARKS,
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
        "conversation": {
            "anyOf": [_text("previous_response_id"), _object({"id": {"type": "string"}}), _NULL]
        },
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
