"""Google Cloud Storage's XML API as far as obstore uses it, objects in memory.

Written by us because no emulator at hand answers conditional writes of the XML API. A generation
is given to every write, `x-goog-if-generation-match` is honoured, and listings come in pages.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from xml.sax.saxutils import escape

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.stores.place import BUCKET, Place

_PAGE = 1000
_STAMP = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of an object."""

    data: bytes
    generation: int

    @property
    def headers(self) -> dict[str, str]:
        """Those that obstore looks at."""
        return {
            "ETag": f'"{self.generation}"',
            "x-goog-generation": str(self.generation),
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        }


class Bucket:
    """One bucket; used on the server's event loop only, so that a request is atomic."""

    def __init__(self) -> None:
        self._objects: dict[str, Stored] = {}
        self._generations = itertools.count(1)

    def put(self, name: str, data: bytes, wanted: str | None) -> Response:
        """`wanted` is the generation that must be there now, 0 for none."""
        there = self._objects.get(name)
        if wanted is not None and int(wanted) != (there.generation if there else 0):
            return _problem(412, "PreconditionFailed")
        self._objects[name] = stored = Stored(data, next(self._generations))
        return Response(headers=stored.headers)

    def get(self, name: str) -> Response:
        stored = self._objects.get(name)
        if stored is None:
            return _problem(404, "NoSuchKey")
        return Response(stored.data, headers=stored.headers)

    def delete(self, name: str) -> Response:
        if self._objects.pop(name, None) is None:
            return _problem(404, "NoSuchKey")
        return Response(status_code=204)

    def list(self, prefix: str, delimiter: str, after: str) -> Response:
        """One page of what comes after; `after` is the continuation token too."""
        names = sorted(
            {_shown(n, prefix, delimiter) for n in self._objects if n.startswith(prefix)}
        )
        left = [name for name in names if name > after]
        page = left[:_PAGE]
        more = len(left) > _PAGE
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        body = (
            '<?xml version="1.0"?><ListBucketResult>'
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
            + "".join(self._row(name) for name in page)
            + "</ListBucketResult>"
        )
        return Response(body, media_type="application/xml")

    def _row(self, name: str) -> str:
        stored = self._objects.get(name)
        if stored is None:  # the part up to a delimiter
            return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        return (
            f"<Contents><Key>{escape(name)}</Key><LastModified>{_STAMP}</LastModified>"
            f"<ETag>&quot;{stored.generation}&quot;</ETag><Size>{len(stored.data)}</Size></Contents>"
        )


def build_app(bucket: str) -> Starlette:
    """A server with one empty bucket."""
    buckets = {bucket: Bucket()}

    async def answer(request: Request) -> Response:
        found = buckets.get(request.path_params["bucket"])
        if found is None:
            return _problem(404, "NoSuchBucket")
        name, query = request.path_params.get("name", ""), request.query_params
        if not name:
            after = query.get("continuation-token") or query.get("start-after") or ""
            return found.list(query.get("prefix", ""), query.get("delimiter", ""), after)
        if request.method == "PUT":
            data = await request.body()
            return found.put(name, data, request.headers.get("x-goog-if-generation-match"))
        return found.delete(name) if request.method == "DELETE" else found.get(name)

    methods = ["GET", "HEAD", "PUT", "DELETE"]
    return Starlette(
        routes=[
            Route("/{bucket}", answer, methods=["GET"]),
            Route("/{bucket}/{name:path}", answer, methods=methods),
        ]
    )


class _Server(uvicorn.Server):
    """Run in a thread: signals are not its business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def gcs_server(host: str = "127.0.0.1", bucket: str = BUCKET) -> Iterator[Place]:
    """A server in a thread of this process, with one empty bucket."""
    # With the protocol named, asyncio turns Nagle's algorithm off: 40 ms per request.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind((host, 0))
    config = uvicorn.Config(build_app(bucket), log_config=None, access_log=False, lifespan="off")
    server = _Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), name="gcs")
    thread.start()
    try:
        url = f"http://{host}:{listener.getsockname()[1]}"
        yield Place(f"gs://{bucket}", {"GOOGLE_BASE_URL": url, "GOOGLE_BEARER_TOKEN": "sax"})
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _shown(name: str, prefix: str, delimiter: str) -> str:
    """The name in a listing, cut after the first delimiter beyond the prefix."""
    if not delimiter or delimiter not in name[len(prefix) :]:
        return name
    return name[: name.index(delimiter, len(prefix)) + len(delimiter)]


def _problem(status: int, code: str) -> Response:
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return Response(body, status, media_type="application/xml")
