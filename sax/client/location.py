"""Finds a cell's admin server: $SAX_ADMIN, else the address that it wrote under a root.

The root is a folder or a bucket. A bucket is read at most once a second, shared by all callers. If
reading it fails, the last known address is used: a broken bucket does not make the admin
unreachable. Object storage is imported only when a root is a URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import threading
import time
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from sax.config import ADDRESS_VARIABLE, ADMIN_PORT, ROOT_VARIABLE, check_addresses
from sax.errors import AdminUnavailable, InvalidRequest
from sax.proto import admin_pb2

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend

_log = logging.getLogger(__name__)
LOCATION = "location.proto"
_FRESH_S = 1.0  # delay at most until an admin that moved is found
_PATIENCE_S = 4.0  # per storage request; a lookup is a listing and a read
_EOL = "\n"
_REMEDY = f"or set {ADDRESS_VARIABLE}=host:port"


def admin_address(root: str | None = None, *, cell: str | None = None) -> str:
    """Return the admin's host:port: $SAX_ADMIN, else as written under the root, else this machine.

    `root` is the folder or URL under which admins write `sax/<cell>/location.proto` (default
    $SAX_ROOT); `cell` is a bare cell name, needed only if the root holds several. May block on a
    bucket. Raises InvalidRequest, AdminUnavailable.
    """
    found = _look(root, cell)
    return found if isinstance(found, str) else found.result()


def written_address(root: str, *, cell: str | None = None) -> str:
    """Return the admin's host:port as written under the root, whatever $SAX_ADMIN says."""
    found = _look_below(root, cell)
    return found if isinstance(found, str) else found.result()


def cells_below(root: str) -> list[str]:
    """Return the bare names of the cells whose admin servers wrote their addresses under the root.

    Raises InvalidRequest, AdminUnavailable.
    """
    folder = root.removeprefix("file://")
    if "://" in folder:
        return _bucket(root.rstrip("/"), None).cells()
    return sorted(_read_folder(Path(folder), None))


async def find_admin(root: str | None = None, *, cell: str | None = None) -> str:
    """`admin_address` without blocking the event loop."""
    found = _look(root, cell)
    return found if isinstance(found, str) else await asyncio.wrap_future(found)


def location_folder(cell: str) -> str:
    """Return the folder below the root for a bare cell name; the layout is Saxml's."""
    return f"sax/{cell}"


def _look(root: str | None, cell: str | None) -> str | Future[str]:
    if address := os.environ.get(ADDRESS_VARIABLE):
        return check_addresses(address, ADDRESS_VARIABLE)
    root = root or os.environ.get(ROOT_VARIABLE)
    if not root:
        return f"127.0.0.1:{ADMIN_PORT}"
    return _look_below(root, cell)


def _look_below(root: str, cell: str | None) -> str | Future[str]:
    folder = root.removeprefix("file://")
    if "://" in folder:
        return _bucket(root.rstrip("/"), cell).look()
    return _choose(_read_folder(Path(folder), cell), folder, cell)


def _read_folder(root: Path, cell: str | None) -> dict[str, bytes]:
    """Return the location files by cell."""
    try:
        paths = root.glob(f"{location_folder(cell or '*')}/{LOCATION}")
        return {path.parent.name: path.read_bytes() for path in paths}
    except OSError as exc:
        raise AdminUnavailable(
            f"{root} cannot be read ({exc}): make it readable {_REMEDY}"
        ) from exc


def _choose(located: dict[str, bytes], root: str, cell: str | None) -> str:
    """Return the single address in the location files, given by cell."""
    if not located:
        raise AdminUnavailable(
            f"no admin server has written its address under {root}/{location_folder(cell or '*')}; "
            f"start one with this --sax_root, {_REMEDY}"
        )
    if len(located) > 1:
        raise InvalidRequest(
            f"{root} holds several cells ({', '.join(sorted(located))}); set "
            f"{ADDRESS_VARIABLE}=host:port of one admin",
            param=ROOT_VARIABLE,
        )
    ((name, data),) = located.items()
    where = f"{root}/{location_folder(name)}/{LOCATION}"
    try:
        address = admin_pb2.Location.FromString(data).location
    except DecodeError as exc:
        raise AdminUnavailable(
            f"{where} cannot be read ({exc}); restart the admin server to rewrite it"
        ) from exc
    return check_addresses(address, where)


class _CellBucket:
    """Cached lookups of one root in object storage. Thread-safe."""

    def __init__(self, root: str, cell: str | None) -> None:
        self._root = root
        self._cell = cell
        self._backend = _open(root)
        self._lock = threading.Lock()
        self._looking: Future[str] | None = None
        self._looked_at = 0.0
        self._known = ""  # the last address found
        self._failing = False

    def look(self) -> Future[str]:
        """Return the lookup in progress, a fresh one, or a new one."""
        with self._lock:
            looking = self._looking
            if looking is None or (looking.done() and self._age_s() > _FRESH_S):
                looking = self._looking = Future()
                looking.set_running_or_notify_cancel()  # shared, so no caller may cancel it
                threading.Thread(target=self._run, args=(looking,), name="location").start()
            return looking

    def cells(self) -> list[str]:
        """Return every cell under the root. Raises AdminUnavailable."""
        try:
            return sorted(self._read())
        except Exception as exc:  # obstore documents no common base class for its errors
            raise self._unreadable(str(exc).partition("\n")[0]) from exc

    def _age_s(self) -> float:
        return time.monotonic() - self._looked_at

    def _run(self, looking: Future[str]) -> None:
        try:
            found, error = self._find(), None
        except BaseException as exc:  # waiters must see any error
            found, error = "", exc
        self._looked_at = time.monotonic()
        if error is None:
            looking.set_result(found)
        else:
            looking.set_exception(error)

    def _find(self) -> str:
        try:
            located = self._read()
        except Exception as exc:  # obstore documents no common base class for its errors
            return self._last_known(str(exc).partition("\n")[0])
        self._failing = False
        self._known = _choose(located, self._root, self._cell)
        return self._known

    def _last_known(self, why: str) -> str:
        if not self._known:
            raise self._unreadable(why)
        if not self._failing:
            _log.warning("%s cannot be read, still using %s: %s", self._root, self._known, why)
        self._failing = True
        return self._known

    def _unreadable(self, why: str) -> AdminUnavailable:
        return AdminUnavailable(
            f"{self._root} cannot be read ({why}): check that the bucket exists and that "
            f"this process's credentials may read it, {_REMEDY}"
        )

    def _read(self) -> dict[str, bytes]:
        import obstore

        located: dict[str, bytes] = {}
        for cell in [self._cell] if self._cell else self._cells():
            with contextlib.suppress(FileNotFoundError):
                name = f"{location_folder(cell)}/{LOCATION}"
                located[cell] = bytes(obstore.get(self._backend, name).bytes())
        return located

    def _cells(self) -> list[str]:
        import obstore

        storage: Any = obstore  # its stub for this function is incomplete
        listed = storage.list_with_delimiter(self._backend, location_folder(""))
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in listed["common_prefixes"]]


@functools.lru_cache(maxsize=64)
def _bucket(root: str, cell: str | None) -> _CellBucket:
    """One per root and process, so that lookups are shared."""
    return _CellBucket(root, cell)


def _open(root: str) -> Backend:
    """Open the store. Raises InvalidRequest if the URL is not a bucket's."""
    from obstore.store import from_url

    try:
        return from_url(
            root,
            client_options={
                "timeout": timedelta(seconds=_PATIENCE_S),
                "connect_timeout": timedelta(seconds=_PATIENCE_S),
                "allow_http": True,  # for endpoints configured with http://
            },
            retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=_PATIENCE_S)},
        )
    except Exception as exc:  # obstore documents no common base class for its errors
        raise InvalidRequest(
            f"{ROOT_VARIABLE}={root!r} is no folder and no bucket ({str(exc).partition(_EOL)[0]}): "
            f"use a path, or a URL that starts with gs://, s3:// or az://, {_REMEDY}",
            param=ROOT_VARIABLE,
        ) from exc
