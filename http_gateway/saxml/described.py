"""Descriptions of Saxml's routes: bodies, queries, replies and errors of both generations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NotRequired, TypedDict

from http_gateway.openapi import (
    ALWAYS,
    JSON,
    WITH_BODY,
    WITH_MODEL,
    RequestBody,
    SaxmlError,
    Schema,
    operation,
    query_of,
)
from http_gateway.saxml.schema import (
    CanaryBody,
    CellBody,
    EventsQuery,
    GenerateBody,
    ModelBody,
    PublishBody,
    RollbackBody,
    UpdateBody,
    WeightsBody,
)
from sax.fields.field import RequestField, RequestRoute
from sax.fields.table import MODEL_BYTES, MOST_REPLICAS, field
from sax.names import CELL_ID_PATTERN, CHECKPOINT_PATTERN, MODEL_ID_PATTERN, MODEL_PATH_PATTERN
from sax.types import Event, Version


class CanaryReply(TypedDict):
    """A version that serves a part of the requests, beside the model's own."""

    version: str
    checkpoint: str
    overrides: dict[str, str]
    percent: float
    ready_replicas: int


class ListedModel(TypedDict):
    """One model; active_replicas are ready."""

    model: str
    model_path: str
    checkpoint: str
    max_replicas: int
    active_replicas: int
    reason: NotRequired[str]
    note: NotRequired[str]
    warnings: NotRequired[list[str]]
    canary: NotRequired[CanaryReply]


class PublishedReply(TypedDict):
    """Fields of the request that were sent."""

    model: str
    model_path: str
    checkpoint: str
    replicas: int
    overrides: NotRequired[dict[str, str]]
    revision: NotRequired[int]
    min_replicas: NotRequired[int | None]
    max_replicas: NotRequired[int | None]
    target_queue: NotRequired[float | None]


class NamedModel(TypedDict):
    model: str


class StartedCanary(TypedDict):
    model: str
    percent: float


class ReplicaReply(TypedDict):
    """The weights of one replica, or why it did not follow a change."""

    address: str
    version: str
    state: str
    error: str


class WeightsReply(TypedDict):
    model: str
    replicas: list[ReplicaReply]


class RolledBack(TypedDict):
    model: str
    version: str


_MODEL: Schema = {"type": "string", "pattern": MODEL_ID_PATTERN, "maxLength": MODEL_BYTES}
_CELL: Schema = {"type": "string", "pattern": CELL_ID_PATTERN, "maxLength": MODEL_BYTES}
_OVERRIDES = field(RequestRoute.PUBLISH, "overrides")
_SPEC: dict[str, Schema] = {
    "model": _MODEL,
    "model_path": {
        "type": "string",
        "pattern": MODEL_PATH_PATTERN,
        "maxLength": field(RequestRoute.PUBLISH, "model_path").bytes,
    },
    "checkpoint": {
        "type": "string",
        "pattern": CHECKPOINT_PATTERN,
        "maxLength": field(RequestRoute.PUBLISH, "checkpoint").bytes,
    },
    "replicas": {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": MOST_REPLICAS},
            {"type": "string", "pattern": "^[0-9]{1,4}$", "description": "As Saxml's clients do."},
        ]
    },
    "overrides": {
        "anyOf": [
            {
                "type": "object",
                "maxProperties": _OVERRIDES.count,
                "description": "A text is JSON text; other values stand for themselves.",
            },
            {
                "type": "string",
                "maxLength": _OVERRIDES.bytes,
                "description": 'KEY=VALUE pairs with a space between them: K=1 K2="text".',
            },
            {"type": "null"},
        ]
    },
}


def _body(kind: Any, route: RequestRoute, /, **replaced: Schema) -> RequestBody:
    return RequestBody(model=kind, route=route, replaced=replaced)


def _query(kind: Any, /, **replaced: Schema) -> Iterator[Schema]:
    for each in query_of(kind):
        yield each | ({"schema": replaced[each["name"]]} if each["name"] in replaced else {})


_told = partial(operation, errors=SaxmlError)
_BODY = (*WITH_BODY, 422)
_ANSWERED = (*WITH_MODEL, 422)
_CHANGED = (*_BODY, 404, 409, 504)
_FOUND = (*ALWAYS, 400, 404, 422)
_ANY_MODEL: Schema = {"type": "string", "maxLength": MODEL_BYTES}
# Each a text and its score.
_SAMPLES: Schema = {
    "type": "array",
    "items": {
        "type": "array",
        "prefixItems": [{"type": "string"}, {"type": "number"}],
        "minItems": 2,
        "maxItems": 2,
    },
}

PUBLISH = _told(
    PublishedReply, statuses=_CHANGED, body=_body(PublishBody, RequestRoute.PUBLISH, **_SPEC)
)
UPDATE = _told(
    PublishedReply, statuses=_CHANGED, body=_body(UpdateBody, RequestRoute.UPDATE, **_SPEC)
)
CANARY = _told(
    StartedCanary,
    statuses=_CHANGED,
    body=_body(
        CanaryBody,
        RequestRoute.CANARY,
        model=_MODEL,
        checkpoint={"anyOf": [_SPEC["checkpoint"], {"type": "null"}]},
        overrides=_SPEC["overrides"],
    ),
)
PROMOTE = _told(
    RolledBack, statuses=_CHANGED, body=_body(ModelBody, RequestRoute.PROMOTE, model=_MODEL)
)
ABORT = _told(
    RolledBack, statuses=_CHANGED, body=_body(ModelBody, RequestRoute.ABORT, model=_MODEL)
)
ROLLBACK = _told(
    RolledBack,
    statuses=_CHANGED,
    body=_body(RollbackBody, RequestRoute.ROLLBACK, model=_MODEL),
)
WEIGHTS = _told(
    WeightsReply, statuses=_CHANGED, body=_body(WeightsBody, RequestRoute.WEIGHTS, model=_MODEL)
)
UNPUBLISH = _told(
    NamedModel,
    statuses=_CHANGED,
    body=_body(ModelBody, RequestRoute.UNPUBLISH, model=_MODEL),
)
VERSIONS = _told(list[Version], statuses=_FOUND, parameters=_query(ModelBody, model=_MODEL))
EVENTS = _told(
    list[Event],
    statuses=_FOUND,
    parameters=_query(EventsQuery, model=_ANY_MODEL),
)
GENERATE = _told(
    _SAMPLES,
    statuses=_ANSWERED,
    body=_body(GenerateBody, RequestRoute.GENERATE, model=_MODEL),
)
LISTCELL = _told(
    ListedModel,
    statuses=(*_BODY, 404),
    body=_body(ModelBody, RequestRoute.LISTCELL, model=_MODEL),
)
LISTCELL_QUERY = _told(
    ListedModel, statuses=(*_BODY, 404), parameters=_query(ModelBody, model=_MODEL)
)
LISTALL = _told(
    list[str],
    statuses=(*_BODY, 404),
    body=_body(CellBody, RequestRoute.LISTALL, sax_cell=_CELL),
)
LISTALL_QUERY = _told(
    list[str], statuses=(*_BODY, 404), parameters=_query(CellBody, sax_cell=_CELL)
)

# Generation 1 sends JSON without a content type, and one status for all that is wrong.
GENERATION_1 = operation(errors=None, statuses=(400, 401, 403))


def generation_1_body(fields: Mapping[str, RequestField]) -> dict[str, Any]:
    """Describe a route of generation 1 whose body has exactly these fields."""
    schema: Schema = {
        "type": "object",
        "properties": {name: _generation_1_field(row) for name, row in fields.items()},
        "required": [*fields],
        "additionalProperties": False,
    }
    body = {"required": True, "content": {JSON: {"schema": schema}}}
    return {**GENERATION_1, "openapi_extra": {"requestBody": body}}


def _generation_1_field(row: RequestField) -> Schema:
    if row.name in _SPEC:
        return _SPEC[row.name]
    return {"type": "string", "maxLength": row.bytes}
