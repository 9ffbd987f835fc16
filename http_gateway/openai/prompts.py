"""Schemas of prompts and texts in all the ways that a body may give them."""

from __future__ import annotations

from http_gateway.openai.chat import ROLES, UNCHANGED
from http_gateway.openapi import Schema, one_of
from sax.fields.field import RequestRoute
from sax.fields.table import field

_NULL: Schema = {"type": "null"}


def prompts_schema(route: RequestRoute, name: str) -> Schema:
    """Return the schema of a text, texts, token ids, or lists of token ids."""
    row = field(route, name)
    text: Schema = {"type": "string", "maxLength": row.bytes}
    ids: Schema = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        "minItems": 1,
        "maxItems": row.tokens,
    }
    many: Schema = {
        "type": "array",
        "items": {"anyOf": [text, ids]},
        "minItems": 1,
        "maxItems": row.count,
    }
    return {"anyOf": [text, ids, many]}


def texts_schema(
    route: RequestRoute, name: str, *, single: bool = True, optional: bool = False, least: int = 1
) -> Schema:
    """Return the schema of texts.

    single: one text stands for a list of it. optional: null is allowed. least: characters of a
    text.
    """
    row = field(route, name)
    text: Schema = {"type": "string", "minLength": least, "maxLength": row.bytes}
    many: Schema = {"type": "array", "items": text, "maxItems": row.count}
    if not optional:
        many["minItems"] = 1
    return {"anyOf": [*([text] if single else []), many, *([_NULL] if optional else [])]}


def messages_schema(route: RequestRoute, *, optional: bool = False) -> Schema:
    """Return the schema of a chat's messages, which hold text only."""
    content = field(route, "messages.content")
    text: Schema = {"type": "string", "maxLength": content.bytes}
    part: Schema = {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": text},
        "required": ["type", "text"],
        "additionalProperties": False,
    }
    parts: Schema = {"type": "array", "items": part, "minItems": 1, "maxItems": content.count}
    message: Schema = {
        "type": "object",
        "properties": {
            "role": {"enum": [*ROLES]},
            "content": {"anyOf": [text, parts]},
            **{name: one_of(values) for name, values in UNCHANGED.items()},
        },
        "required": ["role", "content"],
        "additionalProperties": False,
    }
    many: Schema = {
        "type": "array",
        "items": message,
        "minItems": 1,
        "maxItems": field(route, "messages").count,
    }
    return {"anyOf": [many, _NULL]} if optional else many
