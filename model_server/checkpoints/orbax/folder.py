"""A folder on this machine, in Google Cloud Storage or in S3, accessed through tensorstore.

Credentials come from the environment: Google's application default, or the AWS_* variables and
profiles. $AWS_ENDPOINT_URL names another S3 server.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from model_server.checkpoints.files import read_regular
from sax.errors import CheckpointError

REMOTE = ("gs", "s3")
# Report an unreachable server within seconds; tensorstore by default retries for minutes.
_RETRIES = {"max_retries": 4, "initial_delay": "200ms", "max_delay": "2s"}
_AT_ONCE = 16  # files fetched concurrently


class Folder:
    """One folder; reading is thread-safe. Methods raise CheckpointError, naming the place."""

    def __init__(self, url: str) -> None:
        """`url`: gs://bucket/path, s3://bucket/path or a local path."""
        scheme, separator, rest = url.partition("://")
        self.scheme = scheme if separator else "file"
        self.url = f"{scheme}://{rest.rstrip('/')}" if separator else url.rstrip("/") or "/"
        self._bucket, _, self._path = rest.rstrip("/").partition("/")
        if self.is_local:
            self.path = Path(os.path.abspath(self.url))
        elif self.scheme not in REMOTE or not self._bucket:
            raise CheckpointError(f"{url} is not a path, gs://BUCKET/PATH or s3://BUCKET/PATH")
        self._store: Any = None

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    @property
    def name(self) -> str:
        return self.path.name if self.is_local else self._path.rpartition("/")[2]

    @property
    def parent(self) -> Folder | None:
        """The parent folder; None for the root or a bucket."""
        if self.is_local:
            return Folder(str(self.path.parent)) if self.path.name else None
        head = self._path.rpartition("/")[0]
        return Folder(f"{self.scheme}://{self._bucket}/{head}") if self._path else None

    def child(self, name: str) -> Folder:
        return Folder(f"{self.path if self.is_local else self.url}/{name}")

    def spec(self) -> dict[str, Any]:
        """Return tensorstore's spec of a key-value store of the files below the folder."""
        if self.is_local:
            return {"driver": "file", "path": f"{self.path}/"}
        path = f"{self._path}/" if self._path else ""
        if self.scheme == "gs":
            return {
                "driver": "gcs",
                "bucket": self._bucket,
                "path": path,
                "context": {"gcs_request_retries": _RETRIES},
            }
        return {
            "driver": "s3",
            "bucket": self._bucket,
            "path": path,
            "context": {"s3_request_retries": _RETRIES},
            **_s3_server(),
        }

    def read(self, name: str, most: int = sys.maxsize) -> bytes | None:
        """Read a file of at most `most` bytes, on this machine a regular one; None if none."""
        if self.is_local:
            return self._read_here(self.path / name, most)
        try:
            found = self._files().read(name).result()
        except (ValueError, OSError) as exc:
            raise CheckpointError(f"{self.url}/{name} cannot be read: {reason(exc)}") from exc
        return found.value if found.state == "value" else None

    def _read_here(self, path: Path, most: int) -> bytes | None:
        try:
            return read_regular(path, most)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise CheckpointError(f"{path} cannot be read: {exc.strerror or exc}") from exc

    def write(self, name: str, body: bytes) -> None:
        """Write a whole file atomically: readers see the old content or all of the new."""
        try:
            self._files().write(name, body).result()
        except (ValueError, OSError) as exc:
            raise CheckpointError(f"{self.url}/{name} cannot be written: {reason(exc)}") from exc

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        try:
            self._files().write(name, None).result()
        except (ValueError, OSError) as exc:
            raise CheckpointError(f"{self.url}/{name} cannot be removed: {reason(exc)}") from exc

    def read_all(self, names: tuple[str, ...]) -> dict[str, bytes]:
        """Read several small files; the result has those that exist."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            contents = dict(zip(names, pool.map(self.read, names), strict=True))
        return {name: content for name, content in contents.items() if content is not None}

    def has(self, *names: str) -> bool:
        if self.is_local:
            return any((self.path / name).exists() for name in names)
        return bool(self.read_all(names))

    def children(self) -> list[str]:
        """Return the names of files and folders in it. Remote: lists everything below, too."""
        if self.is_local:
            try:
                return sorted(os.listdir(self.path))
            except OSError as exc:
                text = exc.strerror or exc
                raise CheckpointError(f"{self.path} cannot be listed: {text}") from exc
        return sorted({key.partition("/")[0] for key in self.files()})

    def files(self) -> list[str]:
        """Return the paths of all files below it."""
        try:
            return [key.decode() for key in self._files().list().result()]
        except (ValueError, OSError) as exc:
            raise CheckpointError(f"{self.url} cannot be listed: {reason(exc)}") from exc

    def _files(self) -> Any:
        if self._store is None:
            import tensorstore as ts  # 15 MiB that other checkpoints do without

            self._store = ts.KvStore.open(self.spec()).result()
        return self._store


def reason(error: Exception) -> str:
    """Return tensorstore's message without the spec it appends."""
    return str(error).partition(" [")[0]


def _s3_server() -> dict[str, str]:
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:  # other S3 servers need a region only for signing
        return {"endpoint": endpoint, "aws_region": region or "us-east-1"}
    return {"aws_region": region} if region else {}
