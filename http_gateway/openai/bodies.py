"""Descriptions of the bodies of chats and completions, with what their fields demand of each other.

A schema says all that can be said without reading a grammar or counting answers.
"""

from __future__ import annotations

from http_gateway.openai.completions import CompletionRequest
from http_gateway.openai.prompts import messages_schema, prompts_schema, texts_schema
from http_gateway.openai.schema import ChatRequest
from http_gateway.openai.unsupported import (
    CHAT_LABELS,
    CHAT_REMARKS,
    CHAT_UNCHANGED,
    LABELS,
    STREAM_OPTIONS_UNCHANGED,
)
from http_gateway.openapi import RequestBody, Schema, one_of
from sax.fields.field import RequestRoute
from sax.fields.sampling import MOST_BEAMS
from sax.fields.table import MODEL_BYTES
from sax.names import MODEL_NAME_PATTERN

_NULL: Schema = {"type": "null"}
_FLAG: Schema = {"type": ["boolean", "null"]}


def _given(name: str) -> Schema:
    """Return the schema of a body with a value for a field."""
    return {"properties": {name: {"not": _NULL}}, "required": [name]}


def _is(name: str, value: object) -> Schema:
    return {"properties": {name: {"const": value}}, "required": [name]}


def _if(condition: Schema, then: Schema) -> Schema:
    return {"if": condition, "then": then}


_CONSTRAINTS = (
    *("response_format", "structured_outputs", "guided_json", "guided_regex"),
    *("guided_choice", "guided_grammar"),
)
_RULES: tuple[Schema, ...] = (
    _if(_given("stream_options"), _is("stream", True)),
    _if(_given("prompt_logprobs"), {"not": _is("stream", True)}),
    _if(
        _is("use_beam_search", True),
        {
            "properties": {"n": {"type": ["integer", "null"], "maximum": MOST_BEAMS}},
            "not": _is("stream", True),
        },
    ),
    _if(
        {"not": _is("use_beam_search", True)},
        {
            "properties": {
                "length_penalty": {"enum": [None, 1]},
                "early_stopping": {"enum": [None, False]},
            }
        },
    ),
)
_STREAM_OPTIONS: Schema = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "include_usage": _FLAG,
                "continuous_usage_stats": _FLAG,
                **{name: one_of(values) for name, values in STREAM_OPTIONS_UNCHANGED.items()},
            },
            "additionalProperties": False,
            **_if(_is("continuous_usage_stats", True), _is("include_usage", True)),
        },
        _NULL,
    ]
}


def _shared(route: RequestRoute) -> dict[str, Schema]:
    """Return fields that both bodies read in their own way."""
    return {
        "stream_options": _STREAM_OPTIONS,
        "stop": texts_schema(route, "stop", optional=True),
        "bad_words": texts_schema(route, "bad_words", optional=True),
    }


NAME: Schema = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The model's full name, or its last component.",
    "schema": {
        "type": "string",
        "pattern": MODEL_NAME_PATTERN,
        "minLength": 1,
        "maxLength": MODEL_BYTES,
    },
}
CHAT = RequestBody(
    model=ChatRequest,
    route=RequestRoute.CHAT,
    unchanged=CHAT_UNCHANGED,
    labels=CHAT_LABELS,
    remarks=CHAT_REMARKS,
    replaced={**_shared(RequestRoute.CHAT), "messages": messages_schema(RequestRoute.CHAT)},
    rules=(
        *_RULES,
        _if(_given("top_logprobs"), _is("logprobs", True)),
    ),
)
COMPLETION = RequestBody(
    model=CompletionRequest,
    route=RequestRoute.COMPLETIONS,
    unchanged={},
    labels=LABELS,
    replaced={
        **_shared(RequestRoute.COMPLETIONS),
        "prompt": prompts_schema(RequestRoute.COMPLETIONS, "prompt"),
    },
    rules=_RULES,
)
