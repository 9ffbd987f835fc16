"""Describes routes in /openapi.json: bodies, query, replies and errors.

Routes parse their own bodies (curl's default content type is not JSON, and Saxml sends bodies with
GET) and encode their own replies, so FastAPI cannot see the schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import cleandoc
from threading import Lock
from types import MappingProxyType
from typing import Any, Literal, TypedDict, cast

import msgspec
from pydantic import BaseModel
from starlette.responses import Response

from sax.fields.field import Kind, RequestField, RequestRoute
from sax.fields.sampling import SAMPLING
from sax.fields.table import FIELD_NAME_LENGTH, fields_of
from sax.names import MODEL_NAME_PATTERN

Schema = dict[str, Any]

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
_COMPONENT = "#/components/schemas/{name}"
_components: dict[str, Schema] = {}
_undescribed: list[Callable[[], None]] = []
_describing = Lock()

# Statuses of errors: of every route, of one with a body, and of one that calls a model.
ALWAYS = (401, 403, 500, 503)
WITH_BODY = (*ALWAYS, 400, 408, 413)
WITH_MODEL = (*WITH_BODY, 404, 429, 504)

_DESCRIPTIONS = {
    400: "The request is wrong, or asks for what is not supported: the message names the field.",
    401: "No valid key.",
    403: "The key may not do this.",
    404: "No such model.",
    408: "The body came too slowly.",
    409: "It exists already, or was changed meanwhile.",
    413: "The body is too large.",
    422: "A field has the wrong type or is out of range.",
    429: "Every replica is full: try again after `Retry-After`.",
    500: "A bug in sax; the gateway's log has it under the request's id.",
    503: "Nothing is ready to serve this: try again after `Retry-After`.",
    504: "The time limit of the request passed.",
}
_RETRY = {"retry-after": ("Seconds to wait.", {"type": "integer", "minimum": 1})}
_HEADERS: dict[int, dict[str, tuple[str, Schema]]] = {
    401: {"www-authenticate": ("The scheme, `Bearer`.", {"type": "string"})},
    408: {"connection": ("close", {"type": "string"})},
    429: _RETRY,
    503: _RETRY,
}
_REQUEST_ID = {"x-request-id": ("The request's id: its own, or a new one.", {"type": "string"})}


class OpenAiErrorBody(TypedDict):
    """Fault of a request; `param` is the path of the field at fault, if one is."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAiError(TypedDict):
    """An error of OpenAI's and vLLM's routes."""

    error: OpenAiErrorBody


class AnthropicErrorDetails(TypedDict):
    error_code: str


class AnthropicErrorBody(TypedDict):
    """Fault of a request; the message names the field at fault, if one is."""

    type: str
    message: str
    details: AnthropicErrorDetails


class AnthropicError(TypedDict):
    """An error of Anthropic's routes."""

    type: Literal["error"]
    error: AnthropicErrorBody
    request_id: str


class OllamaError(TypedDict):
    """An error of Ollama's routes."""

    error: str


class SaxmlFieldError(TypedDict):
    """One field that is wrong, and its path."""

    type: str
    loc: list[str | int]
    msg: str


class SaxmlError(TypedDict):
    """An error of Saxml's routes and of those for operators."""

    detail: str | list[SaxmlFieldError]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBody:
    """Description of a request body: a model, and what it does not say itself."""

    model: type[BaseModel]
    route: RequestRoute  # whose rows give the bounds
    # Field -> the values besides null that it may have, since they change nothing.
    unchanged: Mapping[str, Iterable[object]] = field(default_factory=dict[str, Iterable[object]])
    labels: Iterable[str] = ()  # fields that change nothing, whatever they say
    replaced: Mapping[str, Schema] = field(default_factory=dict[str, Schema])
    # Field -> why other values of it are refused, or what it does
    remarks: Mapping[str, str] = field(default_factory=dict[str, str])
    rules: tuple[Schema, ...] = ()  # what fields demand of each other
    closed: bool = True  # other fields are refused

    def schema(self) -> Schema:
        """Return the JSON Schema, without references."""
        schema = inlined(self.model.model_json_schema())
        properties: dict[str, Any] = schema["properties"]
        rows = fields_of(self.route)
        for name, schema_of_field in properties.items():
            if name in rows:
                _put_bounds(schema_of_field, rows[name])
            if name in SAMPLING:
                schema_of_field["description"] = SAMPLING[name].help
        if "model" in properties:
            for branch in properties["model"].get("anyOf", [properties["model"]]):
                branch |= {"pattern": MODEL_NAME_PATTERN} if branch["type"] == "string" else {}
        properties |= {name: _label(rows[name]) for name in sorted(self.labels)}
        properties |= {name: one_of(values) for name, values in self.unchanged.items()}
        properties |= {name: dict(replaced) for name, replaced in self.replaced.items()}
        for name, remark in self.remarks.items():
            said = properties[name].get("description", "")
            properties[name]["description"] = f"{said} {remark}".strip()
        schema["additionalProperties"] = not self.closed
        if not self.closed:
            schema["propertyNames"] = {"maxLength": FIELD_NAME_LENGTH}
        return schema | ({"allOf": list(self.rules)} if self.rules else {})


class EventKinds:
    """Types of the events, or lines, of a stream."""

    def __init__(self, *kinds: Any, last: str | None = None) -> None:
        """last: data of a last event that is no JSON."""
        self.kinds = kinds
        self.last = last


def operation(
    reply: Any = None,
    *,
    errors: Any = SaxmlError,
    statuses: Iterable[int] = ALWAYS,
    body: RequestBody | None = None,
    parameters: Iterable[Schema] = (),
    events: EventKinds | None = None,
    lines: EventKinds | None = None,
    others: Mapping[str, Schema] = MappingProxyType({}),
    media_type: str = JSON,
) -> dict[str, Any]:
    """Return arguments of `add_api_route`, which `describe_operations` completes.

    reply: type of a 200's body, or its schema; None: it has no body, or no content type. errors:
    type of every error's body; None as for `reply`. events, lines: those of a stream.
    others: further content types of a 200, and their schemas.
    """
    extra: Schema = {}
    done: Schema = {}
    failed: dict[int, Schema] = {status: {} for status in sorted(statuses)}

    def describe() -> None:
        done.update(_described(200, reply, media_type))
        for kind, schema in others.items():
            done["content"][kind] = {"schema": schema}
        if events is not None:
            done["content"][EVENTS] = {"itemSchema": _event(events)}
        if lines is not None:
            told = {"anyOf": [schema_of(kind) for kind in lines.kinds]}
            done["content"][LINES] = {"itemSchema": told}
        for status, response in failed.items():
            response.update(_described(status, errors, JSON))
        if body is not None:
            content = {JSON: {"schema": body.schema()}}
            extra["requestBody"] = {"required": True, "content": content}
        if listed := list(parameters):
            extra["parameters"] = listed

    _undescribed.append(describe)
    responses = {200: done, **failed}
    return {"response_class": Response, "responses": responses, "openapi_extra": extra}


def described_later(make: Callable[[], Schema]) -> Schema:
    """Return an empty part of a description, which `describe_operations` fills."""
    part: Schema = {}
    _undescribed.append(lambda: part.update(make()))
    return part


def describe_operations() -> None:
    """Complete the descriptions of all operations, in place: a start does without. Thread-safe."""
    with _describing:
        while _undescribed:
            _undescribed.pop(0)()


def query_of(model: type[BaseModel]) -> Iterator[Schema]:
    """Yield the parameters of a query string."""
    schema = model.model_json_schema()
    required = schema.get("required", [])
    for name, schema_of_field in schema["properties"].items():
        told = {"in": "query", "required": name in required, "schema": schema_of_field}
        yield {"name": name, **told}


@cache
def schema_of(kind: Any) -> Schema:
    """Return the JSON Schema of a type; named types become components of the document.

    All callers share it: nobody changes it.
    """
    (schema,), named = msgspec.json.schema_components((kind,), ref_template=_COMPONENT)
    for component in named.values():
        if "description" in component:  # a docstring, which msgspec 0.22 leaves indented
            component["description"] = cleandoc(component["description"])
    _components.update(named)
    return schema


def with_components(document: Schema) -> Schema:
    """Return the document with the schemas of all named types that it refers to."""
    return {**document, "components": {"schemas": dict(sorted(_components.items()))}}


def one_of(values: Iterable[object]) -> Schema:
    """Return a schema of null and these values."""
    return {"enum": [None, *values], "description": "Changes nothing; other values are refused."}


def inlined(schema: Schema) -> Schema:
    """Return the schema with its definitions in place of references to them."""
    return cast("Schema", _inline(schema, schema.pop("$defs", {})))


def _described(status: int, body: Any, media_type: str) -> dict[str, Any]:
    headers = {**_REQUEST_ID, **_HEADERS.get(status, {})}
    told: dict[str, Any] = {
        "description": _DESCRIPTIONS.get(status, "Done."),
        "headers": {
            name: {"description": text, "schema": schema}
            for name, (text, schema) in headers.items()
        },
    }
    if isinstance(body, dict):
        told["content"] = {media_type: {"schema": body}}
    elif body is not None:
        told["content"] = {media_type: {"schema": schema_of(body)}}
    return told


def _event(events: EventKinds) -> Schema:
    """Return the schema of one server-sent event."""
    told = {"anyOf": [schema_of(kind) for kind in events.kinds]}
    last = [] if events.last is None else [{"const": events.last}]
    json: Schema = {"contentMediaType": JSON, "contentSchema": told}
    data = {"type": "string", "anyOf": [*last, json]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _inline(node: object, definitions: Mapping[str, object]) -> object:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    fields = cast("dict[str, object]", node)
    reference = fields.get("$ref")
    if isinstance(reference, str):
        return _inline(definitions[reference.rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in fields.items()}


def _put_bounds(schema: Schema, row: RequestField) -> None:
    """Add a row's bounds to the schema of its field, wherever it has none of its own."""
    for branch in schema.get("anyOf", [schema]):
        match branch.get("type"):
            case "string" if row.bytes and "enum" not in branch:
                branch.setdefault("maxLength", row.bytes)  # in bytes: no more characters than that
            case "array" if row.count or row.tokens:
                branch.setdefault("maxItems", row.tokens or row.count)
                _put_bounds(branch.get("items", {}), row)
            case "object" if row.count:
                branch.setdefault("maxProperties", row.count)
            case _:
                pass


def _label(row: RequestField) -> Schema:
    """Return the schema of a field that is read no further than its bounds."""
    most = {"maxProperties": row.count} if row.kind is Kind.MAP else {"maxLength": row.bytes}
    return {**most, "description": "A label: changes nothing."}
