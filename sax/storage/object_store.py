"""Object storage for the log: named objects, created once and never changed.

One interface for a local folder, memory, S3, GCS and Azure, via obstore. The only conditional write
is create-if-absent, because every backend has it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import stat
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, from_url
from obstore.store import ObjectStore as Backend

from sax.errors import InvalidRequest, Unavailable
from sax.storage.durable_file import PRIVATE, FileMode, create_file, prepare_folder, replace_file

_log = logging.getLogger(__name__)

# Run blocking store calls on their own threads, so that a hung store only blocks its callers.
#
# A hung thread cannot be ended, so their number is limited: beyond it calls are refused at once.
# asyncio's own pool is not used, because a few hung calls would starve its other users.

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

_EXIT_GRACE_S = 2.0
_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class TooManyCalls(OSError):
    """Too many calls have not returned; no further one is started."""


class StoreThreads:
    """Threads of one store: one per call, because calls are few and a hung one is lost."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._under_way = 0
        self._lock = threading.Lock()

    async def run(
        self,
        call: Callable[Arguments, Result],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Return or raise what the call does. Raises TooManyCalls.

        A cancelled caller stops waiting; the call itself runs on, and counts until it ends.
        """
        self._begin()
        done: Future[Result] = Future()
        done.set_running_or_notify_cancel()  # from here on it cannot be cancelled

        def work() -> None:
            try:
                result = call(*args, **options)
            except BaseException as exc:
                self._end()
                done.set_exception(exc)
            else:
                self._end()
                done.set_result(result)

        # A daemon thread, so that a hung call cannot keep the process from exiting.
        thread = threading.Thread(target=work, name="store call", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:  # the machine is out of threads
            self._end()
            raise TooManyCalls(str(exc)) from exc
        _started.add(thread)
        return await asyncio.wrap_future(done)

    def _begin(self) -> None:
        with self._lock:
            if self._under_way >= self._limit:
                raise TooManyCalls(f"{self._under_way} calls to it have not returned")
            self._under_way += 1

    def _end(self) -> None:
        with self._lock:
            self._under_way -= 1


@atexit.register
def _let_calls_end() -> None:
    """Wait for calls: one returning from native code during shutdown aborts the process."""
    deadline = time.monotonic() + _EXIT_GRACE_S
    for thread in [*_started]:
        thread.join(max(0.0, deadline - time.monotonic()))


# Close a state folder to other users of the machine: it names models, checkpoints and people.
#
# New files are private from the start (durable_file); those of an older version are closed here.

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OURS = frozenset({"sax", "staging"})  # what an admin server makes in the root


def make_private(root: Path) -> None:
    """Take the folder, and what we keep below it, from group and others; log what was open.

    A root that also holds other things stays as it is, and so does what another user owns.
    """
    closed, kept = 0, list[Path]()
    for path in _open_paths(root):
        if path == root and not _holds_only_ours(root):
            kept.append(path)
            continue
        try:
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~_OTHERS)
            closed += 1
        except FileNotFoundError:  # replaced by a newer one meanwhile
            continue
        except PermissionError:
            kept.append(path)
    if closed:
        _log.warning("%d files and folders of %s were open to other users: closed", closed, root)
    if kept:
        _log.warning(
            "%s and %d more are open to other users, and belong to someone else or hold other "
            "things too: close them with chmod, or give a folder of its own",
            kept[0],
            len(kept) - 1,
        )


def _open_paths(root: Path) -> Iterator[Path]:
    yield from _if_open(root)
    for name in sorted(_OURS):
        yield from _if_open(root / name)
        for folder, folders, files in os.walk(root / name):
            for each in (*folders, *files):
                yield from _if_open(Path(folder) / each)


def _if_open(path: Path) -> Iterator[Path]:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISLNK(mode) and mode & _OTHERS:
        yield path


def _holds_only_ours(root: Path) -> bool:
    return all(name in _OURS for name in os.listdir(root))


# Shorter than a client's deadline for a change, so that the client learns why it was refused.
TIMEOUT_S = 8.0
# Reading a log makes 16 at once; only calls that never return can reach this limit.
_CALLS_AT_ONCE = 64
_REMOTE = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "https")


class StoreUnavailable(Unavailable):
    """The store did not answer, or not in time: a write may or may not have landed."""


class StoreReplaced(StoreUnavailable):
    """The store lacks what this process wrote or read there: it was deleted or replaced."""


class ObjectExists(Exception):
    """Create-if-absent found the name taken."""


class ObjectMissing(Exception):
    """No object of that name."""


class ObjectStore(Protocol):
    """Objects by name. Every method raises StoreUnavailable when the backend fails."""

    async def create(self, name: str, data: bytes) -> None:
        """Durable on return. Raises ObjectExists, and then changed nothing."""
        ...

    async def replace(self, name: str, data: bytes) -> None:
        """Create or overwrite; durable on return. Not for the log: its objects never change."""
        ...

    async def get(self, name: str) -> bytes:
        """The whole object. Raises ObjectMissing."""
        ...

    async def names(self, prefix: str) -> list[str]:
        """The names below the prefix, sorted."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Missing names are not an error."""
        ...


class MeasuredStore(ObjectStore, Protocol):
    """An ObjectStore that tells how large its objects are."""

    async def sizes(self, prefix: str) -> dict[str, int]:
        """The names below the prefix, each with the bytes of its object."""
        ...


class RemoteStore:
    """A MeasuredStore over any obstore backend whose writes are durable on return.

    Calls obstore's blocking functions on threads. Its async ones end in a callback from a thread of
    its own, and a process that exits at that moment aborts (seen: one exit in four).
    """

    def __init__(self, backend: Backend, where: str, timeout_s: float = TIMEOUT_S) -> None:
        self._backend = backend
        self._where = where
        self._timeout_s = timeout_s
        self._threads = StoreThreads(_CALLS_AT_ONCE)

    async def create(self, name: str, data: bytes) -> None:
        async with self._in_place(name):
            await self._threads.run(self._create, name, data)

    async def replace(self, name: str, data: bytes) -> None:
        async with self._in_place(name):
            await self._threads.run(self._replace, name, data)

    async def get(self, name: str) -> bytes:
        async with self._mapped(name):
            return await self._threads.run(self._read, name)

    async def names(self, prefix: str) -> list[str]:
        async with self._in_place(prefix):
            return await self._threads.run(self._list, prefix)

    async def sizes(self, prefix: str) -> dict[str, int]:
        async with self._in_place(prefix):
            return await self._threads.run(self._measured, prefix)

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(ObjectMissing):
                async with self._mapped(name):
                    await self._threads.run(obstore.delete, self._backend, name)

    def _create(self, name: str, data: bytes) -> None:
        obstore.put(self._backend, name, data, mode="create")

    def _replace(self, name: str, data: bytes) -> None:
        obstore.put(self._backend, name, data)

    def _read(self, name: str) -> bytes:
        return bytes(obstore.get(self._backend, name).bytes())

    def _list(self, prefix: str) -> list[str]:
        return sorted(self._measured(prefix))

    def _measured(self, prefix: str) -> dict[str, int]:
        found = obstore.list(self._backend, prefix)  # pyright: ignore[reportUnknownMemberType]
        return {entry["path"]: entry["size"] for entry in found.collect()}

    @contextlib.asynccontextmanager
    async def _in_place(self, name: str) -> AsyncGenerator[None]:
        """Map ObjectMissing: for a write or listing it means a missing bucket or folder."""
        try:
            async with self._mapped(name):
                yield
        except ObjectMissing as exc:
            raise self._failure(name, "its bucket or folder does not exist") from exc

    @contextlib.asynccontextmanager
    async def _mapped(self, name: str) -> AsyncGenerator[None]:
        """Map every backend failure to our errors."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except (FileExistsError, AlreadyExistsError) as exc:
            raise ObjectExists(name) from exc
        except FileNotFoundError as exc:
            raise ObjectMissing(name) from exc
        except TimeoutError as exc:
            raise self._failure(name, f"no answer within {self._timeout_s:g} s") from exc
        except (BaseError, OSError, ValueError) as exc:
            raise self._failure(name, first_line(exc)) from exc

    def _failure(self, name: str, why: str) -> StoreUnavailable:
        _log.debug("the store %s failed at %s: %s", self._where, name, why)  # the caller reports it
        return StoreUnavailable(f"the store {self._where} failed at {name}: {why}")


class FolderStore(RemoteStore):
    """An ObjectStore in a local folder, durable against power loss.

    obstore's LocalStore never calls fsync (seen with strace: open, write, link, unlink), so what it
    wrote may be gone, or be empty, after the machine crashes. Writes are therefore our own; reads,
    lists and deletes are obstore's.
    """

    def __init__(self, root: Path, timeout_s: float = TIMEOUT_S, mode: FileMode = PRIVATE) -> None:
        prepare_folder(root, mode)
        if mode == PRIVATE:
            make_private(root)
        super().__init__(LocalStore(root), str(root), timeout_s)
        self._root = root
        self._mode = mode

    def _create(self, name: str, data: bytes) -> None:
        create_file(self._root, self._root / name, data, self._mode)

    def _replace(self, name: str, data: bytes) -> None:
        replace_file(self._root, self._root / name, data, self._mode)

    def _measured(self, prefix: str) -> dict[str, int]:
        if not self._root.is_dir():  # deleted; obstore would find it empty
            raise FileNotFoundError(self._root)
        return super()._measured(prefix)


def open_store(
    location: str,
    timeout_s: float = TIMEOUT_S,
    *,
    param: str = "fs_root",
    mode: FileMode = PRIVATE,
) -> MeasuredStore:
    """The store of a URL or a plain folder. Raises InvalidRequest if it names no store.

    `mode` is that of new files in a folder; a private one also closes those that are there.
    An operation that takes longer than the timeout fails; it may have been done or not.
    """
    scheme = urlsplit(location).scheme
    try:
        if not scheme or len(scheme) == 1:  # a plain path, or a Windows drive letter
            return FolderStore(Path(location).expanduser().absolute(), timeout_s, mode)
        if scheme == "file":
            return FolderStore(Path(unquote(urlsplit(location).path)), timeout_s, mode)
        return RemoteStore(_backend(location, scheme, timeout_s), location, timeout_s)
    except (BaseError, OSError, ValueError) as exc:
        raise InvalidRequest(
            f"cannot write to {location!r} ({first_line(exc)}): give a writable folder, or a URL "
            "that starts with file://, s3://, gs://, az:// or memory://",
            param=param,
        ) from exc


def first_line(exc: BaseException) -> str:
    """The error text without obstore's pages of debug output."""
    return str(exc).partition("\n")[0] or type(exc).__name__


def _backend(location: str, scheme: str, timeout_s: float) -> Backend:
    if scheme == "memory":
        return from_url("memory:///")
    if scheme not in _REMOTE:
        raise ValueError(f"{scheme}:// is not a supported storage scheme")
    return from_url(
        location,
        client_options={
            "timeout": timedelta(seconds=timeout_s * 3 / 4),
            "connect_timeout": timedelta(seconds=timeout_s / 4),
            # Plain HTTP is only used if the operator names such an endpoint, e.g. an S3 server
            # on the same machine.
            "allow_http": True,
        },
        # So our thread returns soon after its caller was refused.
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=timeout_s * 3 / 4)},
    )
