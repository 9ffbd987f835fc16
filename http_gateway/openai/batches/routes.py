"""OpenAI's /v1/batches: files of requests that are answered when nobody else asks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, TypedDict, cast

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from http_gateway.body import read_body
from http_gateway.bounds import bounded
from http_gateway.openai.batches.input_lines import ENDPOINTS
from http_gateway.openai.batches.kept_batches import KeptBatches
from http_gateway.openai.batches.records import BatchOrder
from http_gateway.openai.files.kept_files import KeptFiles
from http_gateway.openai.stored import PageQuery, ids_of_page, list_body, owner_folder
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import (
    ALWAYS,
    JSON,
    WITH_BODY,
    OpenAiError,
    RequestBody,
    Schema,
    operation,
    query_of,
)
from sax.auth.acl import caller
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

_ROUTE = RequestRoute.BATCHES
_WINDOW = re.compile(r"([1-9][0-9]{0,2})h")
MOST_HOURS = 168
_SECONDS = field(RequestRoute.FILES, "expires_after.seconds")


class BatchRequest(BaseModel):
    """POST /v1/batches. null always means the default."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    input_file_id: Annotated[str, bounded(_ROUTE, "input_file_id")]
    endpoint: Annotated[str, bounded(_ROUTE, "endpoint")]
    completion_window: Annotated[str, bounded(_ROUTE, "completion_window")]
    metadata: Annotated[dict[str, str], bounded(_ROUTE, "metadata")] | None = None
    output_expires_after: (
        Annotated[dict[str, object], bounded(_ROUTE, "output_expires_after")] | None
    ) = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, {})
        if self.endpoint not in [*ENDPOINTS]:
            raise UnsupportedParameter(
                f"endpoint {quoted(self.endpoint)} is not supported: send {', '.join(ENDPOINTS)}",
                param="endpoint",
            )
        self.window_s  # noqa: B018  (checks it)
        self.output_ttl_s  # noqa: B018

    @property
    def window_s(self) -> int:
        found = _WINDOW.fullmatch(self.completion_window)
        if found is None or int(found[1]) > MOST_HOURS:
            raise InvalidRequest(
                f"completion_window is {quoted(self.completion_window)}: send hours from 1h to "
                f"{MOST_HOURS}h, such as 24h",
                param="completion_window",
            )
        return int(found[1]) * 3600

    @property
    def output_ttl_s(self) -> int | None:
        """Seconds that the output and error files are kept; None: until they are deleted."""
        given = self.output_expires_after
        if given is None:
            return None
        param = "output_expires_after"
        if set(given) != {"anchor", "seconds"} or given["anchor"] != "created_at":
            raise InvalidRequest(
                f'{param}: send {{"anchor": "created_at", "seconds": ...}}', param=param
            )
        _SECONDS.read(given["seconds"], f"{param}.seconds")
        return cast("int", given["seconds"])


def _expiry() -> Schema:
    properties: dict[str, Any] = {
        "anchor": {"const": "created_at"},
        "seconds": {"type": "integer", "minimum": _SECONDS.least, "maximum": _SECONDS.most},
    }
    whole = {"type": "object", "properties": properties, "required": [*properties]}
    return {"anyOf": [{**whole, "additionalProperties": False}, {"type": "null"}]}


BATCH = RequestBody(
    model=BatchRequest,
    route=_ROUTE,
    replaced={
        "endpoint": {"enum": [*ENDPOINTS]},
        "completion_window": {
            "type": "string",
            "pattern": "^([1-9]|[1-9][0-9]|1[0-5][0-9]|16[0-8])h$",
        },
        "output_expires_after": _expiry(),
    },
)


class BatchError(TypedDict):
    code: str
    message: str
    line: int | None
    param: str | None


class BatchErrors(TypedDict):
    object: Literal["list"]
    data: list[BatchError]


class BatchBody(TypedDict):
    """A batch; times are seconds since the epoch."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating",
        "failed",
        "in_progress",
        "finalizing",
        "completed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: dict[str, int]
    metadata: dict[str, str] | None


class BatchList(TypedDict):
    object: Literal["list"]
    data: list[BatchBody]
    first_id: str | None
    last_id: str | None
    has_more: bool


ID: Schema = {
    "name": "batch_id",
    "in": "path",
    "required": True,
    "description": "The id of a batch.",
    "schema": {"type": "string", "minLength": 1},
}
_told = partial(operation, errors=OpenAiError)
_ONE = (*ALWAYS, 400, 404)
_CREATE = _told(BatchBody, statuses=(*WITH_BODY, 404), body=BATCH)
_LIST = _told(BatchList, statuses=_ONE, parameters=query_of(PageQuery))
_GET = _told(BatchBody, statuses=_ONE, parameters=[ID])


class BatchRoutes:
    def __init__(self, kept: KeptBatches, files: KeptFiles, poke: Callable[[], None]) -> None:
        """poke: called when there is a new batch."""
        self._kept = kept
        self._files = files
        self._poke = poke

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/batches", tags=["openai"])
        add = router.add_api_route
        add("", self.create, methods=["POST"], **_CREATE)
        add("", self.list, methods=["GET"], **_LIST)
        add("/{batch_id}", self.get, methods=["GET"], **_GET)
        add("/{batch_id}/cancel", self.cancel, methods=["POST"], **_GET)
        return router

    async def create(self, request: Request) -> Response:
        """Run the requests in a file."""
        raw = await read_body(request, RequestRoute.BATCHES)
        body = BatchRequest.model_validate_json(raw)
        body.check()
        owner = owner_folder()
        file = await self._files.get(owner, body.input_file_id, "input_file_id")
        if file.purpose != "batch":
            raise InvalidRequest(
                f"input_file_id names a file of the purpose {file.purpose}: upload one with the "
                "purpose batch",
                param="input_file_id",
            )
        now = int(self._kept.clock())
        order = BatchOrder(
            id=self._kept.new_id(),
            owner=owner,
            key=caller().name,
            endpoint=body.endpoint,
            input_file_id=file.id,
            completion_window=body.completion_window,
            created_at=now,
            expires_at=now + body.window_s,
            metadata=body.metadata,
            output_ttl_s=body.output_ttl_s,
        )
        await self._kept.create(order)
        self._poke()
        return await self._told(order.id)

    async def list(self, request: Request) -> Response:
        """List the batches of the caller's key, the newest first."""
        query = PageQuery.model_validate(dict(request.query_params))
        ids, more = ids_of_page(await self._kept.ids(owner_folder()), query)
        batches = [(await self._kept.view(owner_folder(), id)).body() for id in ids]
        return _json(list_body(batches, more=more))

    async def get(self, request: Request) -> Response:
        """Describe a batch, with its counts so far."""
        return await self._told(request.path_params["batch_id"])

    async def cancel(self, request: Request) -> Response:
        """End a batch; what was answered is kept."""
        id = request.path_params["batch_id"]
        view = await self._kept.view(owner_folder(), id)
        if view.done is not None:
            raise InvalidRequest(
                f"this batch is {view.done.status}, and cannot be cancelled", param="batch_id"
            )
        await self._kept.cancel((owner_folder(), id))
        return await self._told(id)

    async def _told(self, id: str) -> Response:
        return _json((await self._kept.view(owner_folder(), id)).body())


def _json(body: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type=JSON)
