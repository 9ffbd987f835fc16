"""PageFile: a file of a page with its type and tag, read once from its package.

The pages of the gateway and of the admin server share the files of this package: one stylesheet,
light and dark, and the switch between them.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
}
# Scripts and styles only from files, nothing inline: no text of a model or server can become a
# program, however a page is wrong.
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; media-src data:; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # ask each time; the tag answers if nothing changed
}


class PageReply(NamedTuple):
    status_code: int
    content: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    media_type: str
    tag: str  # of HTTP's ETag, quotes included

    def reply(self, headers: Mapping[str, str]) -> PageReply:
        """Answer a request with these headers: the file, compressed if it may be, or that it is
        known."""
        told = {**PAGE_HEADERS, "etag": self.tag, "vary": "accept-encoding"}
        if self._is_known(headers.get("if-none-match", "")):
            return PageReply(304, b"", told)
        told["content-type"] = self.media_type
        if "gzip" not in headers.get("accept-encoding", ""):
            return PageReply(200, self.body, told)
        return PageReply(200, _packed(self.body), {**told, "content-encoding": "gzip"})

    def _is_known(self, if_none_match: str) -> bool:
        """True if the header names this very content."""
        return self.tag in (each.strip().removeprefix("W/") for each in if_none_match.split(","))


@cache
def _packed(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)


@cache
def page_files(package: str) -> Mapping[str, PageFile]:
    """Return the files of a page by name: shared ones, its package's own, and its libraries'."""
    own = resources.files(package)
    folders = (resources.files("sax.look"), own / "static", own / "libraries")
    found = (each for folder in folders if folder.is_dir() for each in folder.iterdir())
    found = (each for each in found if each.is_file())
    kinds = ((each, each.name.rpartition(".")[2]) for each in found)
    return {each.name: _made(each.read_bytes(), kind) for each, kind in kinds if kind in _TYPES}


def _made(body: bytes, kind: str) -> PageFile:
    return PageFile(body, _TYPES[kind], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
