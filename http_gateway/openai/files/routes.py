"""OpenAI's /v1/files: what clients keep here, for batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypedDict

import msgspec
from fastapi import APIRouter, Request
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response, StreamingResponse

from http_gateway.openai.files.kept_files import KeptFile, KeptFiles
from http_gateway.openai.stored import PageQuery, owner_folder, page_of
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import ALWAYS, JSON, WITH_BODY, OpenAiError, Schema, operation, query_of
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

PURPOSES = ("batch",)
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Upload:
    file: UploadFile
    filename: str
    purpose: str
    ttl_s: int | None

    async def content(self) -> AsyncIterator[bytes]:
        while data := await self.file.read(_READ_BYTES):
            yield data


def read_upload(form: FormData) -> Upload:
    """Raises InvalidRequest or UnsupportedParameter naming the field."""
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name in fields:
            raise InvalidRequest(f"{quoted(name)} is sent twice: send it once", param=name[:128])
        fields[name] = value
    file, purpose = fields.pop("file", None), fields.pop("purpose", None)
    if not isinstance(file, UploadFile):
        raise InvalidRequest("file: send a file, in a part with a file name", param="file")
    if purpose not in PURPOSES:
        raise UnsupportedParameter(
            f"purpose {quoted(purpose)} is not supported: send batch, which is all that files are "
            "for here",
            param="purpose",
        )
    filename = file.filename or "upload"
    field(RequestRoute.FILES, "filename").check_text(filename, "file")
    ttl_s = _ttl(fields.pop(_ANCHOR, None), fields.pop(_SECONDS, None))
    refuse_unsupported(fields, {})
    return Upload(file, filename, purpose, ttl_s)


def _ttl(anchor: object, seconds: object) -> int | None:
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest(
            f"{_ANCHOR} is {quoted(anchor)}: send created_at", param="expires_after"
        )
    text = seconds if isinstance(seconds, str) and len(seconds) < 20 else ""
    number: object = int(text) if text.isascii() and text.isdecimal() else seconds
    field(RequestRoute.FILES, "expires_after.seconds").read(number, _SECONDS)
    assert isinstance(number, int)
    return number


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
