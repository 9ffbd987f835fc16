"""Named objects that are created once and never changed: the little we ask of object storage.

One face for a local folder, memory, S3, GCS and Azure, by way of obstore. The only conditional
write is create-if-absent, because it is the one that every backend has. Knows nothing of records,
cells or leaders.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, from_url
from obstore.store import ObjectStore as Backend

from admin_server.durable_file import create_file, prepare_folder
from sax.errors import InvalidRequest, Unavailable

_log = logging.getLogger(__name__)
# A publish that waits longer than this for the store is refused, and the client may try again.
_TIMEOUT_S = 20.0
_REMOTE = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "https")


class StoreUnavailable(Unavailable):
    """The store did not answer, or not in time: a write may or may not have landed."""


class ObjectExists(Exception):
    """Create-if-absent found the name taken."""


class ObjectMissing(Exception):
    """No object of that name."""


class ObjectStore(Protocol):
    """Objects by name. Every method raises StoreUnavailable when the backend fails."""

    async def create(self, name: str, data: bytes) -> None:
        """Durable on return. Raises ObjectExists, and then changed nothing."""
        ...

    async def get(self, name: str) -> bytes:
        """The whole object. Raises ObjectMissing."""
        ...

    async def names(self, prefix: str) -> list[str]:
        """The names below the prefix, in order."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """A name that is not there is no error."""
        ...


class RemoteStore:
    """An ObjectStore over any obstore backend whose writes are durable when they return.

    Calls obstore's blocking functions on threads. Its async ones end in a callback from a thread
    of its own, and a process that exits at that moment is aborted (seen: one exit in four).
    """

    def __init__(self, backend: Backend, where: str) -> None:
        self._backend = backend
        self._where = where

    async def create(self, name: str, data: bytes) -> None:
        async with _mapped(self._where, name):
            await asyncio.to_thread(obstore.put, self._backend, name, data, mode="create")

    async def get(self, name: str) -> bytes:
        async with _mapped(self._where, name):
            return await asyncio.to_thread(self._read, name)

    async def names(self, prefix: str) -> list[str]:
        async with _mapped(self._where, prefix):
            return await asyncio.to_thread(self._list, prefix)

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(ObjectMissing):
                async with _mapped(self._where, name):
                    await asyncio.to_thread(obstore.delete, self._backend, name)

    def _read(self, name: str) -> bytes:
        return bytes(obstore.get(self._backend, name).bytes())

    def _list(self, prefix: str) -> list[str]:
        found = obstore.list(self._backend, prefix)  # pyright: ignore[reportUnknownMemberType]
        return sorted(entry["path"] for entry in found.collect())


class FolderStore(RemoteStore):
    """An ObjectStore in a local folder, durable against a loss of power.

    obstore's LocalStore never calls fsync (seen with strace: open, write, link, unlink), so what
    it wrote may be gone, or be there with no bytes in it, after a crash of the machine. Writes
    are therefore our own; reads, lists and deletes are obstore's.
    """

    def __init__(self, root: Path) -> None:
        prepare_folder(root)
        super().__init__(LocalStore(root), str(root))
        self._root = root

    async def create(self, name: str, data: bytes) -> None:
        try:
            async with _mapped(str(self._root), name):
                await asyncio.to_thread(create_file, self._root, self._root / name, data)
        except ObjectMissing as exc:  # the folder went away under our hands
            raise StoreUnavailable(f"the folder {self._root} vanished while writing") from exc


def open_store(location: str) -> ObjectStore:
    """The store of a URL or a plain folder. Raises InvalidRequest if it names no store."""
    scheme = urlsplit(location).scheme
    try:
        if not scheme or len(scheme) == 1:  # a plain path, or a Windows drive letter
            return FolderStore(Path(location).expanduser().absolute())
        if scheme == "file":
            return FolderStore(Path(unquote(urlsplit(location).path)))
        return RemoteStore(_backend(location, scheme), location)
    except (BaseError, OSError, ValueError) as exc:
        raise InvalidRequest(
            f"cannot keep state in {location!r} ({first_line(exc)}): give a folder that can be "
            "written, or a URL that starts with file://, s3://, gs://, az:// or memory://",
            param="fs_root",
        ) from exc


def first_line(exc: BaseException) -> str:
    """What went wrong without obstore's pages of debug output."""
    return str(exc).partition("\n")[0] or type(exc).__name__


def _backend(location: str, scheme: str) -> Backend:
    if scheme == "memory":
        return from_url("memory:///")
    if scheme not in _REMOTE:
        raise ValueError(f"{scheme}:// is no storage scheme")
    return from_url(
        location,
        client_options={
            "timeout": timedelta(seconds=10),
            "connect_timeout": timedelta(seconds=5),
            # Plain HTTP is used only where the operator names such an endpoint; without this
            # an S3 server on the same machine cannot be reached.
            "allow_http": True,
        },
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=15)},
    )


@contextlib.asynccontextmanager
async def _mapped(where: str, name: str) -> AsyncGenerator[None]:
    """Map every way in which a backend fails, once."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            yield
    except (FileExistsError, AlreadyExistsError) as exc:
        raise ObjectExists(name) from exc
    except FileNotFoundError as exc:
        raise ObjectMissing(name) from exc
    except (BaseError, OSError, ValueError, TimeoutError) as exc:
        _log.warning("the store %s failed at %s: %s", where, name, first_line(exc))
        raise StoreUnavailable(f"the store {where} failed at {name}: {first_line(exc)}") from exc
