"""Descriptions of Anthropic's request bodies.

A schema says all that can be said without matching results to calls or reading a schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from http_gateway.anthropic.blocks import LIFETIMES, LONGEST_SCOPE
from http_gateway.anthropic.blocks import UNCHANGED as BLOCK_UNCHANGED
from http_gateway.anthropic.content import UNTIL_NEXT
from http_gateway.anthropic.context_edits import MOST_EDITS, MOST_NAMES
from http_gateway.anthropic.schema import (
    COUNT_UNCHANGED,
    DISPLAYS,
    EFFORTS,
    KINDS,
    MESSAGE_UNCHANGED,
    MISMATCHES,
    CountRequest,
    MessageRequest,
)
from http_gateway.anthropic.tools import CHOICES
from http_gateway.anthropic.tools import UNCHANGED as TOOL_UNCHANGED
from http_gateway.images.image_link import MEDIA_TYPES, base64_schema, url_schema
from http_gateway.openai.prompts import texts_schema
from http_gateway.openai.tools import FUNCTION_NAME_PATTERN
from http_gateway.openapi import RequestBody, Schema, one_of
from sax.fields.field import RequestRoute
from sax.fields.table import LABEL_BYTES, TOOL_TEXT_BYTES, TOOLS, field

_ROUTE = RequestRoute.MESSAGES
_NULL: Schema = {"type": "null"}
_NAME: Schema = {"type": "string", "pattern": FUNCTION_NAME_PATTERN}
_ID: Schema = {"type": "string", "maxLength": LABEL_BYTES}
_FLAG: Schema = {"type": ["boolean", "null"]}
_TEXT: Schema = {"type": "string", "maxLength": field(_ROUTE, "messages.content").bytes}


def _object(properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    return {
        "type": "object",
        "properties": {**properties},
        "required": [*required],
        "additionalProperties": False,
    }


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, _NULL]}


_CACHE = _or_null(
    _object(
        {
            "type": {"const": "ephemeral"},
            "ttl": {"enum": [None, *LIFETIMES]},
            "scope": {"type": ["string", "null"], "maxLength": LONGEST_SCOPE},
        },
        ["type"],
    )
)


def _block(kind: str, own: Mapping[str, Schema], required: Iterable[str]) -> Schema:
    unchanged = {name: one_of(values) for name, values in BLOCK_UNCHANGED[kind].items()}
    properties = {"type": {"const": kind}, "cache_control": _CACHE, **unchanged, **own}
    return _object(properties, ["type", *required])


def _content(*blocks: Schema, least: int = 1) -> Schema:
    count = field(_ROUTE, "messages.content").count
    many = {"type": "array", "items": {"anyOf": [*blocks]}, "minItems": least, "maxItems": count}
    return {"anyOf": [_TEXT, many]}


_TEXTS = _block("text", {"text": _TEXT}, ["text"])
_IMAGE = _block(
    "image",
    {
        "source": {
            "anyOf": [
                _object(
                    {
                        "type": {"const": "base64"},
                        "media_type": {"enum": [*MEDIA_TYPES]},
                        "data": base64_schema(_ROUTE, "messages.content.source"),
                    },
                    ["type", "media_type", "data"],
                ),
                _object(
                    {
                        "type": {"const": "url"},
                        "url": url_schema(_ROUTE, "messages.content.source"),
                    },
                    ["type", "url"],
                ),
            ]
        }
    },
    ["source"],
)
_SOURCE: Schema = {
    "anyOf": [
        _object(
            {"type": {"const": "text"}, "media_type": {"enum": [None, "text/plain"]},
             "data": _TEXT},
            ["type", "data"],
        ),
        _object(
            {"type": {"const": "content"}, "content": _content(_TEXTS, _IMAGE, least=0)},
            ["type", "content"],
        ),
    ]
}  # fmt: skip
_DOCUMENT = _block(
    "document",
    {"source": _SOURCE, "title": _or_null(_TEXT), "context": _or_null(_TEXT)},
    ["source"],
)
_FOUND = _block(
    "search_result",
    {"source": _TEXT, "title": _TEXT, "content": _content(_TEXTS, least=0)},
    ["source", "title", "content"],
)
_THINKING = _block(
    "thinking", {"thinking": _TEXT, "signature": {"type": ["string", "null"]}}, ["thinking"]
)
_HIDDEN = _block("redacted_thinking", {"data": {"type": ["string", "null"]}}, [])
_USE = _block(
    "tool_use",
    {"id": _ID, "name": _NAME, "input": {"type": "object"}},
    ["id", "name", "input"],
)
_SERVER_USE = _block(
    "mcp_tool_use",
    {"id": _ID, "name": _NAME, "server_name": _ID, "input": {"type": "object"}},
    ["id", "name", "server_name", "input"],
)
_SERVER_RESULT = _block(
    "mcp_tool_result",
    {"tool_use_id": _ID, "content": _or_null(_content(_TEXTS, least=0)), "is_error": _FLAG},
    ["tool_use_id"],
)
_SERVER_TOOLS: Schema = {
    "type": "array",
    "items": _object(
        {
            "name": _NAME,
            "description": {"type": ["string", "null"], "maxLength": TOOL_TEXT_BYTES},
            "input_schema": {"type": ["object", "null"]},
        },
        ["name"],
    ),
    "maxItems": TOOLS,
}
_LISTING = _block(
    "mcp_tool_listing",
    {"mcp_server_name": _or_null(_ID), "tools": _SERVER_TOOLS},
    ["tools"],
)
_REFERENCE = _block("tool_reference", {"tool_name": _ID}, ["tool_name"])
_RESULT = _block(
    "tool_result",
    {
        "tool_use_id": _ID,
        "content": _or_null(_content(_TEXTS, _IMAGE, _DOCUMENT, _FOUND, _REFERENCE, least=0)),
        "is_error": _FLAG,
    },
    ["tool_use_id"],
)


def _turn(role: str, *blocks: Schema, **own: Schema) -> Schema:
    shared = {"role": {"const": role}, "content": _content(*blocks)}
    return _object({**shared, **own}, ["role", "content"])


_MESSAGES: Schema = {
    "type": "array",
    "items": {
        "anyOf": [
            _turn("user", _TEXTS, _IMAGE, _DOCUMENT, _FOUND, _RESULT),
            _turn(
                "assistant",
                *(_TEXTS, _THINKING, _HIDDEN, _USE),
                *(_SERVER_USE, _SERVER_RESULT, _LISTING),
            ),
            _turn(
                "system",
                _TEXTS,
                clear_at={"enum": [None, "never", UNTIL_NEXT]},
                output_config=_or_null(_object({})),
            ),
        ]
    },
    "minItems": 1,
    "maxItems": field(_ROUTE, "messages").count,
}
_TOOL: Schema = _object(
    {
        "type": {"enum": [None, "custom"]},
        "name": _NAME,
        "description": {"type": ["string", "null"], "maxLength": TOOL_TEXT_BYTES},
        "input_schema": {"type": "object"},
        "strict": _FLAG,
        "defer_loading": _FLAG,
        "input_examples": _or_null({"type": "array", "items": {"type": "object"}}),
        "cache_control": _CACHE,
        **{name: one_of(values) for name, values in TOOL_UNCHANGED.items()},
    },
    ["name", "input_schema"],
)
_CONFIG = _or_null(_object({"enabled": _FLAG, "defer_loading": _FLAG}))
_TOOLSET: Schema = _object(
    {
        "type": {"const": "mcp_toolset"},
        "mcp_server_name": _NAME,
        "default_config": _CONFIG,
        "configs": _or_null({"type": "object", "additionalProperties": _CONFIG}),
        "tools": _or_null(_SERVER_TOOLS),
        "cache_control": _CACHE,
    },
    ["type", "mcp_server_name"],
)
_SERVER: Schema = _object(
    {
        "type": {"const": "url"},
        "url": {"type": "string"},
        "name": _NAME,
        "authorization_token": _or_null({
            "type": "string",
            "maxLength": field(_ROUTE, "mcp_servers.authorization_token").bytes,
        }),
        "tool_configuration": _or_null(
            _object({
                "enabled": _FLAG,
                "allowed_tools": _or_null({"type": "array", "items": {"type": "string"}}),
            })
        ),
    },
    ["type", "url", "name"],
)  # fmt: skip
_CHOICE: Schema = {
    "anyOf": [
        _object(
            {"type": {"enum": [name for name in CHOICES if name != "tool"]},
             "disable_parallel_tool_use": _FLAG},
            ["type"],
        ),
        _object(
            {"type": {"const": "tool"}, "name": _NAME, "disable_parallel_tool_use": _FLAG},
            ["type", "name"],
        ),
        _NULL,
    ]
}  # fmt: skip
_BUDGET = field(_ROUTE, "thinking.budget_tokens")
_SHOWN: dict[str, Schema] = {
    "display": {"enum": [None, *DISPLAYS]},
    "block_binding": _or_null(_object({"prefix_mismatch_behavior": {"enum": [*MISMATCHES]}})),
}
_THOUGHT: Schema = {
    "anyOf": [
        _object(
            {
                "type": {"const": "enabled"},
                "budget_tokens": {
                    "type": "integer",
                    "minimum": _BUDGET.least,
                    "maximum": _BUDGET.most,
                },
                **_SHOWN,
            },
            ["type", "budget_tokens"],
        ),
        _object(
            {
                "type": {"enum": [kind for kind in KINDS if kind != "enabled"]},
                "budget_tokens": _NULL,
                **_SHOWN,
            },
            ["type"],
        ),
        _NULL,
    ]
}


def _amount(*kinds: str, least: int = 0) -> Schema:
    value: Schema = {"type": "integer", "minimum": least}
    return _object({"type": {"enum": [*kinds]}, "value": value}, ["type", "value"])


_TOOL_NAMES: Schema = {"type": "array", "items": {"type": "string"}, "maxItems": MOST_NAMES}
_EDITS: Schema = {
    "anyOf": [
        _object(
            {
                "type": {"const": "clear_thinking_20251015"},
                "keep": {
                    "anyOf": [
                        {"const": "all"},
                        _object({"type": {"const": "all"}}, ["type"]),
                        _amount("thinking_turns", least=1),
                        _NULL,
                    ]
                },
            },
            ["type"],
        ),
        _object(
            {
                "type": {"const": "clear_tool_uses_20250919"},
                "trigger": _or_null(_amount("input_tokens", "tool_uses")),
                "keep": _or_null(_amount("tool_uses")),
                "clear_at_least": _or_null(_amount("input_tokens")),
                "exclude_tools": _or_null(_TOOL_NAMES),
                "clear_tool_inputs": {"anyOf": [_FLAG, _TOOL_NAMES]},
            },
            ["type"],
        ),
        _object(
            {
                "type": {"const": "compact_20260112"},
                "trigger": _or_null(_amount("input_tokens")),
                "instructions": {"type": ["string", "null"]},
                "pause_after_compaction": _FLAG,
            },
            ["type"],
        ),
    ]
}
_CONTEXT = _or_null(
    _object({"edits": _or_null({"type": "array", "items": _EDITS, "maxItems": MOST_EDITS})})
)
_FORMAT = _object({"type": {"const": "json_schema"}, "schema": {"type": "object"}},
                  ["type", "schema"])  # fmt: skip
_OUTPUT = _or_null(_object({"effort": {"enum": [None, *EFFORTS]}, "format": _or_null(_FORMAT)}))


def _system() -> Schema:
    many = {"type": "array", "items": _TEXTS, "maxItems": field(_ROUTE, "system").count}
    return {"anyOf": [_TEXT, many, _NULL]}


def _taken(schema: Schema, why: str) -> Schema:
    """Return the schema of a field that is checked and changes nothing."""
    return {**schema, "description": f"Changes nothing: {why}."}


def _text_or_null(name: str) -> Schema:
    return {"type": ["string", "null"], "maxLength": field(_ROUTE, name).bytes}


def _many_or_null(name: str, items: Schema) -> Schema:
    many = {"type": "array", "items": items, "maxItems": field(_ROUTE, name).count}
    return _or_null(many)


_BETAS = _many_or_null("betas", {"type": "string", "maxLength": field(_ROUTE, "betas").bytes})
_SHARED: dict[str, Schema] = {
    "messages": _MESSAGES,
    "system": _system(),
    "tools": _or_null({"type": "array", "items": {"anyOf": [_TOOL, _TOOLSET]}, "maxItems": TOOLS}),
    "mcp_servers": {
        **_many_or_null("mcp_servers", _SERVER),
        "description": "Servers whose tools the gateway calls, where its operator allows them.",
    },
    "tool_choice": _CHOICE,
    "thinking": _THOUGHT,
    "output_config": _OUTPUT,
    "cache_control": _taken(_CACHE, "every prompt is in the prefix cache"),
    "context_management": _CONTEXT,
    "thread": _taken(
        _or_null(_object({"type": {"const": "create"}}, ["type"])),
        "no conversation is held here, which a thread that goes on is told",
    ),
    "betas": _taken(_BETAS, "what they turn on is on"),
    "anthropic_beta": _taken(_BETAS, "what they turn on is on"),
    "anthropic_version": _taken(_text_or_null("anthropic_version"), "there is one"),
    "fallbacks": _taken(
        {"anyOf": [{"const": "default"}, _many_or_null("fallbacks", {"type": "object"})]},
        "no model here declines for a policy",
    ),
    "diagnostics": _taken(
        _or_null({"type": "object", "maxProperties": field(_ROUTE, "diagnostics").count}),
        "the reply has none",
    ),
}
_USER = _or_null(_object({"user_id": {"type": ["string", "null"], "maxLength": LABEL_BYTES}}))
MESSAGE = RequestBody(
    model=MessageRequest,
    route=_ROUTE,
    unchanged=MESSAGE_UNCHANGED,
    replaced={
        **_SHARED,
        "metadata": _USER,
        "stop_sequences": texts_schema(_ROUTE, "stop_sequences", single=False, optional=True),
    },
)
COUNT = RequestBody(
    model=CountRequest,
    route=RequestRoute.COUNT_TOKENS,
    unchanged=COUNT_UNCHANGED,
    replaced=_SHARED,
)
