"""Descriptions of Ollama's request bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from http_gateway.bounds import bounded
from http_gateway.images.image_link import base64_schema
from http_gateway.ollama.messages import ROLES
from http_gateway.ollama.options import FLAGS, NUMBERS, TUNING
from http_gateway.ollama.options import UNCHANGED as OPTION_UNCHANGED
from http_gateway.ollama.schema import (
    ANSWER_UNCHANGED,
    BARRED_BY_RAW,
    DURATION,
    EMBED_UNCHANGED,
    GENERATE_UNCHANGED,
    LEVELS,
    SHOW_UNCHANGED,
    OllamaChat,
    OllamaEmbed,
    OllamaGenerate,
    OllamaOldEmbed,
    OllamaShow,
)
from http_gateway.openai.prompts import texts_schema
from http_gateway.openai.tools import FUNCTION_NAME_PATTERN
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import RequestBody, Schema, one_of
from sax.errors import InvalidRequest
from sax.fields.field import Kind, RequestField, RequestRoute
from sax.fields.table import MODEL_BYTES, OLLAMA_OPTIONS, TOOL_TEXT_BYTES, TOOLS, field
from sax.names import MODEL_ID_PATTERN

_Name = Annotated[str, bounded(RequestRoute.OLLAMA_SHOW, "name")]
# Field -> the values besides null that change nothing
PULL_UNCHANGED: dict[str, tuple[object, ...]] = {
    "insecure": (True, False),
    "username": ("",),
    "password": ("",),
}
CREATE_UNCHANGED: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("modelfile", "template", "system", "quantize", "path"), ("",)),
    **dict.fromkeys(("license", "messages"), ("", [])),
    **dict.fromkeys(("parameters", "files", "adapters"), ({},)),
}
_CHAT, _GENERATE = RequestRoute.OLLAMA_CHAT, RequestRoute.OLLAMA_GENERATE
_NULL: Schema = {"type": "null"}
_FLAG: Schema = {"type": ["boolean", "null"]}
_NUMBER: Schema = {"type": ["number", "null"], "description": "Without effect here."}
_MODEL: Schema = {
    "type": "string",
    "pattern": f"^({MODEL_ID_PATTERN[1:-1]}(:latest)?|[^/][\\s\\S]*)?$",
    "maxLength": MODEL_BYTES,
}


class OllamaNamed(BaseModel):
    """DELETE /api/delete."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    model: _Name | None = None
    name: _Name | None = None  # older clients'

    @property
    def asked(self) -> str:
        """The model. Raises InvalidRequest or UnsupportedParameter for what cannot be honoured."""
        refuse_unsupported(self.model_extra, self._unchanged())
        name = self.model if self.name is None else self.name
        if not name or (self.model or name) != name:
            raise InvalidRequest("model is missing: send model, or name", param="model")
        return name

    def _unchanged(self) -> dict[str, tuple[Any, ...]]:
        return {}


class OllamaPull(OllamaNamed):
    """POST /api/pull."""

    stream: bool | None = None

    def _unchanged(self) -> dict[str, tuple[Any, ...]]:
        return PULL_UNCHANGED


class OllamaCreate(OllamaNamed):
    """POST /api/create."""

    stream: bool | None = None
    source: Annotated[_Name, Field(alias="from")]

    def _unchanged(self) -> dict[str, tuple[Any, ...]]:
        return CREATE_UNCHANGED


class OllamaCopy(BaseModel):
    """POST /api/copy."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    source: _Name
    destination: _Name


def _object(properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    return {
        "type": "object",
        "properties": {**properties},
        "required": [*required],
    }


def _or_null(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas, _NULL]}


def _option(row: RequestField) -> Schema:
    if row.kind is Kind.TEXTS:
        text = {"type": "string", "minLength": 1, "maxLength": row.bytes}
        return _or_null(text, {"type": "array", "items": text, "maxItems": row.count})
    bounds: dict[str, Any] = {
        "minimum": row.least,
        "exclusiveMinimum": row.above,
        "maximum": row.most,
    }
    kind = "integer" if row.kind is Kind.INTEGER else "number"
    said = {name: bound for name, bound in bounds.items() if bound is not None}
    return _or_null({"type": kind, **said})


def _options() -> Schema:
    names = (*OLLAMA_OPTIONS, "seed", "num_predict")
    return _or_null(
        _object(
            {
                **{name: _option(field(_CHAT, f"options.{name}")) for name in names},
                **dict.fromkeys((*NUMBERS, *TUNING), _NUMBER),
                **dict.fromkeys(FLAGS, {**_FLAG, "description": "Without effect here."}),
                **{name: one_of(values) for name, values in OPTION_UNCHANGED.items()},
            }
        )
    )


def _text(name: str, *kinds: str) -> Schema:
    return {"type": ["string", *kinds], "maxLength": field(_CHAT, f"messages.{name}").bytes}


def _calls() -> Schema:
    function = _object(
        {
            "name": {"type": "string", "pattern": FUNCTION_NAME_PATTERN},
            "arguments": {"type": "object"},
            "index": {},
        },
        ["name", "arguments"],
    )
    call = _object(
        {
            "id": {"type": ["string", "null"], "maxLength": 512},
            "type": {"const": "function"},
            "function": function,
        },
        ["function"],
    )
    return {"type": "array", "items": call, "maxItems": TOOLS}


def _turn(role: str, own: Mapping[str, Schema]) -> Schema:
    nothing = {
        "images": _or_null({"type": "array", "maxItems": 0}),
        "thinking": {"enum": [None, ""]},
        "tool_calls": {"anyOf": [{"type": "array", "maxItems": 0}, _NULL]},
        "tool_name": {"enum": [None, ""]},
        "tool_call_id": {"enum": [None, ""]},
    }
    return _object(
        {
            "role": {"const": role},
            "content": _text("content", "null"),
            **nothing,
            **own,
        },
        ["role"],
    )


def _pictures(route: RequestRoute, name: str) -> Schema:
    return _or_null(
        {
            "type": "array",
            "items": base64_schema(route, name),
            "maxItems": field(route, name).count,
        }
    )


_OWN: dict[str, dict[str, Schema]] = {
    "user": {"images": _pictures(_CHAT, "messages.images")},
    "assistant": {"thinking": _text("thinking", "null"), "tool_calls": _or_null(_calls())},
    "tool": {
        "images": _pictures(_CHAT, "messages.images"),
        **{name: _text(name, "null") for name in ("tool_name", "tool_call_id")},
    },
}
_MESSAGES = _or_null(
    {
        "type": "array",
        "items": {"anyOf": [_turn(role, _OWN.get(role, {})) for role in ROLES]},
        "maxItems": field(_CHAT, "messages").count,
    }
)
_TOOL = _object(
    {
        "type": {"const": "function"},
        "function": _object(
            {
                "name": {"type": "string", "pattern": FUNCTION_NAME_PATTERN},
                "description": {"type": ["string", "null"], "maxLength": TOOL_TEXT_BYTES},
                "parameters": {"type": ["object", "null"]},
                "strict": _FLAG,
            },
            ["name"],
        ),
    },
    ["function"],
)
_KEEP: Schema = {
    "anyOf": [
        {"type": "number", "not": {"const": 0}},
        {"type": "string", "pattern": DURATION, "maxLength": 32},
        _NULL,
    ],
    "description": "Without effect: a model stays loaded until it is unpublished.",
}
_OF_ALL: dict[str, Schema] = {"model": _MODEL, "options": _options(), "keep_alive": _KEEP}
_OF_ANSWERS: dict[str, Schema] = {
    **_OF_ALL,
    "format": _or_null({"enum": ["", "json"]}, {"type": "object", "maxProperties": 32}),
    "think": {"enum": [None, True, False, *LEVELS]},
}
CHAT = RequestBody(
    closed=False,
    model=OllamaChat,
    route=_CHAT,
    unchanged=ANSWER_UNCHANGED,
    replaced={
        **_OF_ANSWERS,
        "messages": _MESSAGES,
        "tools": _or_null({"type": "array", "items": _TOOL, "maxItems": TOOLS}),
    },
)


def _given(name: str) -> Schema:
    return {"properties": {name: {"not": {"enum": [None, "", False, []]}}}, "required": [name]}


GENERATE = RequestBody(
    closed=False,
    model=OllamaGenerate,
    route=_GENERATE,
    unchanged=GENERATE_UNCHANGED,
    replaced={**_OF_ANSWERS, "images": _pictures(_GENERATE, "images")},
    rules=(
        {
            "if": {"anyOf": [_given("raw"), _given("suffix")]},
            "then": {"not": {"anyOf": [_given(name) for name in BARRED_BY_RAW]}},
        },
    ),
)
EMBED = RequestBody(
    closed=False,
    model=OllamaEmbed,
    route=RequestRoute.OLLAMA_EMBED,
    unchanged=EMBED_UNCHANGED,
    replaced={
        **_OF_ALL,
        "input": {
            "anyOf": [
                each | ({"minItems": 0} if each["type"] == "array" else {})
                for each in texts_schema(RequestRoute.OLLAMA_EMBED, "input", least=0)["anyOf"]
            ]
        },
    },
)
OLD_EMBED = RequestBody(
    closed=False, model=OllamaOldEmbed, route=RequestRoute.OLLAMA_EMBEDDINGS, replaced=_OF_ALL
)
_NAME = _or_null(_MODEL)
_NAMED: dict[str, Schema] = {"model": _NAME, "name": _NAME}
_ONE_NAME: tuple[Schema, ...] = (
    {
        "anyOf": [
            {"properties": {name: {"type": "string"}}, "required": [name]}
            for name in ("model", "name")
        ]
    },
)
SHOW = RequestBody(
    closed=False,
    model=OllamaShow,
    route=RequestRoute.OLLAMA_SHOW,
    unchanged=SHOW_UNCHANGED,
    replaced=_NAMED,
    rules=_ONE_NAME,
)
PULL = RequestBody(
    closed=False,
    model=OllamaPull,
    route=RequestRoute.OLLAMA_PULL,
    unchanged=PULL_UNCHANGED,
    replaced=_NAMED,
    rules=_ONE_NAME,
)
CREATE = RequestBody(
    closed=False,
    model=OllamaCreate,
    route=RequestRoute.OLLAMA_CREATE,
    unchanged=CREATE_UNCHANGED,
    replaced={**_NAMED, "from": _MODEL},
    rules=_ONE_NAME,
)
COPY = RequestBody(
    closed=False,
    model=OllamaCopy,
    route=RequestRoute.OLLAMA_COPY,
    replaced={"source": _MODEL, "destination": _MODEL},
)
DELETE = RequestBody(
    closed=False,
    model=OllamaNamed,
    route=RequestRoute.OLLAMA_DELETE,
    replaced=_NAMED,
    rules=_ONE_NAME,
)
