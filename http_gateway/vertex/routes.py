"""/predict as Vertex AI asks a container (AIP_PREDICT_ROUTE): instances in, predictions out.

An instance is the body of a chat, if it has messages, or of a completion; parameters are fields of
all instances. A prediction is the whole reply. The health route is /health.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import Message

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.openai.bodies import CHAT, COMPLETION
from http_gateway.openai.reply_types import ChatCompletion, Completion
from http_gateway.openai.routes import OpenAiRoutes
from http_gateway.openai.schema import refuse_unsupported
from http_gateway.openapi import JSON, WITH_MODEL, OpenAiError, Schema, one_of, operation, schema_of
from http_gateway.problems import describe
from http_gateway.streams.sse import stop
from sax.errors import InvalidRequest, SaxError
from sax.fields.field import RequestRoute
from sax.fields.table import field

_INSTANCES = field(RequestRoute.PREDICT, "instances")
_PARAMETERS = field(RequestRoute.PREDICT, "parameters")
_NOT_HERE = (b"content-length", b"content-type", b"transfer-encoding")

# One whole reply per instance, in order.
_PREDICTION: Schema = {"anyOf": [schema_of(ChatCompletion), schema_of(Completion)]}
_PREDICTIONS: Schema = {
    "type": "object",
    "properties": {"predictions": {"type": "array", "items": _PREDICTION}},
    "required": ["predictions"],
}
_NULL = msgspec.Raw(b"null")

Fields = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class PredictBody:
    """POST /predict. Instances are decoded one by one, each by its own route."""

    instances: list[Fields]
    parameters: Fields

    def placed(self, index: int, error: SaxError) -> SaxError:
        """Return the error of an instance with the place of its field in the whole body."""
        at = f"instances[{index}]"
        first = re.split(r"[.\[]", error.param or "", maxsplit=1)[0]
        if first in self.parameters and first not in self.instances[index]:
            at = "parameters"
        param = f"{at}.{error.param}" if error.param else at
        return type(error)(f"{at}: {error.text}", param=param, retry_after_s=error.retry_after_s)


class VertexRoutes:
    def __init__(self, backend: Backend, openai: OpenAiRoutes) -> None:
        self._backend = backend
        self._openai = openai

    def router(self) -> APIRouter:
        router = APIRouter(tags=["vertex"])
        router.add_api_route("/predict", self.predict, methods=["POST"], **_described())
        return router

    async def predict(self, request: Request) -> Response:
        """Answer instances, all at the same time; the first error is that of all."""
        body = _decoded(await read_body(request, RequestRoute.PREDICT))
        if not all("model" in {**body.parameters, **instance} for instance in body.instances):
            only = await self._backend.catalog.resolve_or_only(None)
            body.parameters["model"] = msgspec.Raw(msgspec.json.encode(only))
        tasks = [
            asyncio.create_task(self._predicted(request, body, index))
            for index in range(len(body.instances))
        ]
        try:
            replies = await asyncio.gather(*tasks)
        finally:
            await stop(*tasks)
        return Response(msgspec.json.encode({"predictions": replies}), media_type=JSON)

    async def _predicted(self, request: Request, body: PredictBody, index: int) -> msgspec.Raw:
        """Raises SaxError with the path of a field at fault."""
        fields = {**body.parameters, **body.instances[index]}
        answer = self._openai.chat if "messages" in fields else self._openai.completions
        try:
            _check_whole(fields)
            reply = await answer(_instance_request(request, msgspec.json.encode(fields)))
        except ValidationError as error:
            problem = describe(error)
            raise body.placed(index, InvalidRequest(problem.text, param=problem.param)) from error
        except SaxError as error:
            raise body.placed(index, error) from error
        return msgspec.Raw(reply.body)


def _decoded(raw: bytes) -> PredictBody:
    """Raises InvalidRequest."""
    fields = _read(raw, "body", Fields)
    instances = _read(fields.pop("instances", _NULL), "instances", list[Fields])
    given: Fields | None = _read(fields.pop("parameters", _NULL), "parameters", Fields | None)
    parameters = given or {}
    refuse_unsupported(fields, {})
    if not instances:
        raise InvalidRequest("instances is empty: send at least one", param="instances")
    _INSTANCES.check_count(len(instances))
    _PARAMETERS.check(parameters)
    return PredictBody(instances, parameters)


def _read(raw: bytes | msgspec.Raw, name: str, kind: Any) -> Any:
    """Raises InvalidRequest for what is not JSON, or of another kind."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{name}: {error}", param=name) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}", param="body") from error


def _check_whole(fields: Fields) -> None:
    """Raise InvalidRequest for an answer that would be streamed."""
    if "stream" in fields and bytes(fields["stream"]) not in (b"false", b"null"):
        raise InvalidRequest("stream: a prediction comes whole: leave it out", param="stream")


def _instance_request(request: Request, body: bytes) -> Request:
    """Return a request with one instance as its body, whose client is that of the whole."""
    headers = [pair for pair in request.scope["headers"] if pair[0] not in _NOT_HERE]
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return parts.pop() if parts else await request.receive()

    return Request({**request.scope, "headers": headers}, receive)


@cache
def _described() -> dict[str, Any]:
    told = operation(_PREDICTIONS, errors=OpenAiError, statuses=WITH_MODEL)
    instance: Schema = {
        "anyOf": [_without_model(CHAT.schema()), _without_model(COMPLETION.schema())]
    }
    schema: Schema = {
        "type": "object",
        "properties": {
            "instances": {
                "type": "array",
                "items": instance,
                "minItems": 1,
                "maxItems": _INSTANCES.count,
            },
            "parameters": {
                "anyOf": [
                    {
                        "type": "object",
                        "maxProperties": _PARAMETERS.count,
                        "description": "Fields of all instances; an instance's own come first.",
                    },
                    {"type": "null"},
                ]
            },
        },
        "required": ["instances"],
        "additionalProperties": False,
    }
    told["openapi_extra"]["requestBody"] = {
        "required": True,
        "content": {JSON: {"schema": schema}},
    }
    return told


def _without_model(schema: Schema) -> Schema:
    """Return the schema of an instance, which need not name its model and is not streamed."""
    whole = {"stream": one_of([False]), "stream_options": {"type": "null"}}
    return schema | {
        "required": [name for name in schema["required"] if name != "model"],
        "properties": schema["properties"] | whole,
    }
