"""OpenAI's /v1/files: what clients keep here, for batches."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypedDict

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from http_gateway.openai.files.kept_files import KeptFile, KeptFiles
from http_gateway.openai.files.upload import PURPOSES, read_upload
from http_gateway.openai.stored.owner import owner_folder
from http_gateway.openai.stored.page import PageQuery, page_of
from http_gateway.openapi import (
    ALWAYS,
    JSON,
    WITH_BODY,
    OpenAiError,
    Schema,
    operation,
    query_of,
)
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import field

_BYTES = "application/octet-stream"
_MOST_FIELDS = 16


class FileBody(TypedDict):
    """A file that is kept here."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]


class FileList(TypedDict):
    object: Literal["list"]
    data: list[FileBody]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(TypedDict):
    id: str
    object: Literal["file"]
    deleted: bool


class FileQuery(PageQuery):
    """GET /v1/files."""

    purpose: str | None = None


def _form() -> Schema:
    seconds = field(RequestRoute.FILES, "expires_after.seconds")
    properties: dict[str, Schema] = {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": [*PURPOSES]},
        "expires_after[anchor]": {"enum": ["created_at"]},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": seconds.least,
            "maximum": seconds.most,
        },
    }
    return {
        "type": "object",
        "properties": properties,
        "required": ["file", "purpose"],
        "dependentRequired": {
            "expires_after[anchor]": ["expires_after[seconds]"],
            "expires_after[seconds]": ["expires_after[anchor]"],
        },
        "additionalProperties": False,
    }


ID: Schema = {
    "name": "file_id",
    "in": "path",
    "required": True,
    "description": "The id of a file.",
    "schema": {"type": "string", "minLength": 1},
}
_told = partial(operation, errors=OpenAiError)
_ONE = (*ALWAYS, 400, 404)
_UPLOAD = _told(FileBody, statuses=WITH_BODY)
_UPLOAD["openapi_extra"]["requestBody"] = {
    "required": True,
    "content": {"multipart/form-data": {"schema": _form()}},
}
_LIST = _told(FileList, statuses=_ONE, parameters=query_of(FileQuery))
_GET = _told(FileBody, statuses=_ONE, parameters=[ID])
_DELETE = _told(FileDeleted, statuses=_ONE, parameters=[ID])
_CONTENT = _told(
    {"type": "string", "format": "binary"}, statuses=_ONE, parameters=[ID], media_type=_BYTES
)


class FileRoutes:
    def __init__(self, files: KeptFiles) -> None:
        self._files = files

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/files", tags=["openai"])
        add = router.add_api_route
        add("", self.upload, methods=["POST"], **_UPLOAD)
        add("", self.list, methods=["GET"], **_LIST)
        add("/{file_id}", self.get, methods=["GET"], **_GET)
        add("/{file_id}", self.delete, methods=["DELETE"], **_DELETE)
        add("/{file_id}/content", self.content, methods=["GET"], **_CONTENT)
        return router

    async def upload(self, request: Request) -> Response:
        """Keep a file, sent as multipart/form-data."""
        self._files.check()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "multipart/form-data":
            raise InvalidRequest("the body: send multipart/form-data", param="body")
        async with request.form(max_files=1, max_fields=_MOST_FIELDS) as form:
            upload, owner = read_upload(form), owner_folder()
            async with self._files.room(owner, upload.file.size or 0):
                made = await self._files.add(
                    owner,
                    upload.content(),
                    filename=upload.filename,
                    purpose=upload.purpose,
                    ttl_s=upload.ttl_s,
                )
        return _json(file_body(made))

    async def list(self, request: Request) -> Response:
        """List the files of the caller's key, the newest first."""
        query = FileQuery.model_validate(dict(request.query_params))
        files = await self._files.list(owner_folder())
        wanted = [file for file in files if query.purpose in (None, file.purpose)]
        return _json(page_of([{**file_body(file)} for file in wanted], query))

    async def get(self, request: Request) -> Response:
        """Describe a file."""
        return _json(file_body(await self._file(request)))

    async def delete(self, request: Request) -> Response:
        """Delete a file."""
        id = request.path_params["file_id"]
        await self._files.delete(owner_folder(), id)
        return _json({"id": id, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        """Return what is in a file."""
        file = await self._file(request)
        content = self._files.content(owner_folder(), file)
        headers = {"content-length": str(file.bytes)}
        return StreamingResponse(content, headers=headers, media_type=_BYTES)

    async def _file(self, request: Request) -> KeptFile:
        return await self._files.get(owner_folder(), request.path_params["file_id"])


def file_body(file: KeptFile) -> FileBody:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def _json(body: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type=JSON)
