"""Schemas of prompts and texts in all the ways that a body may give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from http_gateway.images.image_link import (
    DETAIL,
    FRAMES_TYPE,
    SOUND_FORMATS,
    VIDEO_TYPES,
    base64_schema,
    url_schema,
)
from http_gateway.openai.chat import OF_OTHER_ROLES, ROLES, UNCHANGED
from http_gateway.openai.tools import FUNCTION_NAME_PATTERN
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
    """Return the schema of a chat's messages: texts, media, calls of tools and their results."""
    content = field(route, "messages.content")
    text: Schema = {"type": "string", "maxLength": content.bytes}
    part: Schema = {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": text},
        "required": ["type", "text"],
        "additionalProperties": False,
    }
    content_schema = _content(text, part, most=content.count)
    seen = _content(
        text,
        {"anyOf": [part, _image_part(route), _sound_part(route), _video_part(route)]},
        most=content.count,
    )
    label = partial(_label, route)
    name = {"name": label("name")}
    tool = {**name, "tool_call_id": label("tool_call_id")}
    assistant: dict[str, Schema] = {
        **name,
        "refusal": label("refusal"),
        "tool_calls": {"anyOf": [_calls(route), _NULL]},
        "reasoning": label("reasoning"),
        "reasoning_content": label("reasoning"),
    }
    plain = [role for role in ROLES if role not in ("assistant", "tool", "user")]
    refused = {"type": {"const": "refusal"}, "refusal": text}
    refusal: Schema = {**part, "properties": refused, "required": [*refused]}
    said = _content(text, {"anyOf": [part, refusal]}, most=content.count)
    nothing: Schema = {"enum": [None, []]}
    given: Schema = {"minItems": 1, "minLength": 1, "not": _NULL}
    message: Schema = {
        "anyOf": [
            _turn(plain, content_schema, name),
            _turn(["user"], seen, name),
            _turn(["tool"], content_schema, tool),
            _turn(["assistant"], said, assistant),
            # Calls and refusals may stand without content.
            *(
                {
                    **_turn(["assistant"], {"anyOf": [said, nothing]}, assistant, own),
                    "allOf": [{"properties": {own: given}}],
                }
                for own in ("tool_calls", "refusal")
            ),
        ]
    }
    many: Schema = {
        "type": "array",
        "items": message,
        "minItems": 1,
        "maxItems": field(route, "messages").count,
    }
    return {"anyOf": [many, _NULL]} if optional else many


def _turn(
    roles: Sequence[str], content: Schema, own: Mapping[str, Schema], required: str = "content"
) -> Schema:
    return {
        "type": "object",
        "properties": {
            "role": {"enum": [*roles]},
            "content": content,
            **{name: one_of(values) for name, values in (OF_OTHER_ROLES | UNCHANGED).items()},
            **own,
        },
        "required": ["role", required],
        "additionalProperties": False,
    }


def _content(text: Schema, part: Schema, most: int | None) -> Schema:
    parts = {"type": "array", "items": part, "minItems": 1, "maxItems": most}
    return {"anyOf": [text, parts]}


def _image_part(route: RequestRoute) -> Schema:
    url: Schema = {
        "type": "object",
        "properties": {
            "url": url_schema(route, "messages.content.image_url"),
            "detail": DETAIL,
        },
        "required": ["url"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"type": {"const": "image_url"}, "image_url": url},
        "required": ["type", "image_url"],
        "additionalProperties": False,
    }


def seen_part_schema() -> Schema:
    """Return the schema of a text or an image among the parts of an input."""
    text: Schema = {
        "type": "object",
        "properties": {
            "type": {"const": "text"},
            "text": {
                "type": "string",
                "maxLength": field(RequestRoute.CHAT, "messages.content").bytes,
            },
        },
        "required": ["type", "text"],
        "additionalProperties": False,
    }
    return {"anyOf": [text, _image_part(RequestRoute.CHAT)]}


def _video_part(route: RequestRoute) -> Schema:
    types = f"({'|'.join(VIDEO_TYPES)})"
    url: Schema = {
        "type": "object",
        "properties": {"url": url_schema(route, "messages.content.video_url", types, FRAMES_TYPE)},
        "required": ["url"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"type": {"const": "video_url"}, "video_url": url},
        "required": ["type", "video_url"],
        "additionalProperties": False,
    }


def _sound_part(route: RequestRoute) -> Schema:
    sound: Schema = {
        "type": "object",
        "properties": {
            "data": base64_schema(route, "messages.content.input_audio"),
            "format": {"enum": [*SOUND_FORMATS]},
        },
        "required": ["data", "format"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"type": {"const": "input_audio"}, "input_audio": sound},
        "required": ["type", "input_audio"],
        "additionalProperties": False,
    }


def _label(route: RequestRoute, name: str) -> Schema:
    return {"type": ["string", "null"], "maxLength": field(route, f"messages.{name}").bytes}


def _calls(route: RequestRoute) -> Schema:
    def text(name: str) -> Schema:
        return {"type": "string", "maxLength": field(route, f"messages.tool_calls.{name}").bytes}

    def call(kind: str, said: str, required: Sequence[str]) -> Schema:
        name: Schema = {**text("name"), "pattern": FUNCTION_NAME_PATTERN}
        own: Schema = {
            "type": "object",
            "properties": {"name": name, said: text("arguments")},
            "required": [*required],
            "additionalProperties": False,
        }
        return {
            "type": "object",
            "properties": {"id": text("id"), "type": {"const": kind}, kind: own},
            "required": [kind],
            "additionalProperties": False,
        }

    kinds = [call("function", "arguments", ["name"]), call("custom", "input", ["name", "input"])]
    kinds[1]["required"] = ["type", "custom"]
    most = field(route, "messages.tool_calls").count
    return {"type": "array", "items": {"anyOf": kinds}, "maxItems": most}
