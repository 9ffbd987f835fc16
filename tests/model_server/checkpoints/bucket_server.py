"""A local folder served as a bucket: enough of Google's JSON API and of S3's REST API.

The first folder of a path is the bucket. Counts the bytes of every object it hands out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_GCS = "/storage/v1/b/"
_GCS_UPLOAD = "/upload/storage/v1/b/"


class BucketServer(ThreadingHTTPServer):
    """Serves `root` on a free port until closed."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.sent: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(root: Path) -> Iterator[BucketServer]:
    """A running server."""
    server = BucketServer(root)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: BucketServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        if split.path.startswith(_GCS):
            bucket, _, name = split.path.removeprefix(_GCS).partition("/o")
            if name:
                return self._object(bucket, unquote(name[1:]))
            return self._gcs_list(bucket, query)
        bucket, _, name = unquote(split.path[1:]).partition("/")
        return self._object(bucket, name) if name else self._s3_list(bucket, query)

    def do_PUT(self) -> None:
        bucket, _, name = unquote(urlsplit(self.path).path[1:]).partition("/")
        self._keep(bucket, name)
        self._answer(200, b"", {"ETag": '"1"'})

    def do_POST(self) -> None:
        split = urlsplit(self.path)
        bucket, _, _ = split.path.removeprefix(_GCS_UPLOAD).partition("/o")
        name = parse_qs(split.query)["name"][0]
        self._keep(bucket, name)
        about = {"name": name, "bucket": bucket, "generation": "1", "size": "1"}
        self._answer(200, json.dumps(about).encode())

    def do_DELETE(self) -> None:
        path = urlsplit(self.path).path
        bucket, _, name = path.removeprefix(_GCS if path.startswith(_GCS) else "/").partition("/")
        place = self.server.root / bucket / unquote(name.removeprefix("o/"))
        there = place.is_file()
        place.unlink(missing_ok=True)
        self._answer(204 if there else 404, b"")

    def _keep(self, bucket: str, name: str) -> None:
        path = self.server.root / bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))

    def _object(self, bucket: str, name: str) -> None:
        path = self.server.root / bucket / name
        if not path.is_file():
            return self._answer(404, b"no such object")
        data, size = path.read_bytes(), path.stat().st_size
        status, headers = 200, {"ETag": '"1"', "x-goog-generation": "1"}
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or size), size - 1) + 1
            status, data = 206, data[start:stop]
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self.server.sent[name] = self.server.sent.get(name, 0) + len(data)
        return self._answer(status, data, headers)

    def _gcs_list(self, bucket: str, query: dict[str, str]) -> None:
        first, end = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
        items = [{"name": n, "size": "1"} for n in self._names(bucket) if first <= n < end]
        self._answer(200, json.dumps({"items": items}).encode())

    def _s3_list(self, bucket: str, query: dict[str, str]) -> None:
        names = [n for n in self._names(bucket) if n.startswith(query.get("prefix", ""))]
        rows = "".join(f"<Contents><Key>{escape(n)}</Key><Size>1</Size></Contents>" for n in names)
        body = (
            f"<ListBucketResult><KeyCount>{len(names)}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        )
        self._answer(200, body.encode())

    def _names(self, bucket: str) -> list[str]:
        base = self.server.root / bucket
        return sorted(str(p.relative_to(base)) for p in base.rglob("*") if p.is_file())

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
