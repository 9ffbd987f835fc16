"""Reads an upload: multipart/form-data with a file, its purpose and its time to live."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import FormData, UploadFile

from http_gateway.openai.schema import refuse_unsupported
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
