"""File with the programs of a model's last start on this machine.

A digest of the rest, then the rest in MessagePack. It is replaced as a whole, so that servers of
one model share it; a file that was cut or changed is known by its digest.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from sax.errors import CheckpointError

_MAGIC = b"sax start 1\n"
_BEFORE = len(_MAGIC) + hashlib.sha256().digest_size
_SUFFIX = ".programs"
_MOST_FILES = 32  # in a folder: those used last


class MadeProgram(msgspec.Struct, frozen=True, array_like=True):
    """A compiled program."""

    text: str  # sha256 of its lowered text
    body: bytes  # as `compiling.to_bytes`


class LastStart(msgspec.Struct, frozen=True, array_like=True):
    """Programs of a start, and the seconds of its steps."""

    key: str = ""  # of all that its programs depend on
    programs: Mapping[str, MadeProgram] = {}  # by name
    seconds: tuple[float, ...] = ()  # of its steps, by bucket
    measured: int = 0  # starts that measured them


def file_of(folder: Path, name: str) -> Path:
    return folder / f"{name}{_SUFFIX}"


def read_start(path: Path) -> LastStart:
    """Return what a file holds; nothing if there is none.

    Raises CheckpointError for a file that is damaged, or that others than its user could write.
    """
    try:
        check_private(path.parent)
        body = path.read_bytes()
    except FileNotFoundError:
        return LastStart()
    except OSError as exc:
        raise CheckpointError(f"{path} cannot be read: {exc}") from exc
    told, rest = body[len(_MAGIC) : _BEFORE], memoryview(body)[_BEFORE:]
    if not body.startswith(_MAGIC) or hashlib.sha256(rest).digest() != told:
        raise CheckpointError(f"{path} is damaged")
    try:
        return msgspec.msgpack.decode(rest, type=LastStart)
    except msgspec.MsgspecError as exc:
        raise CheckpointError(f"{path} is of another version of sax: {exc}") from exc


def write_start(path: Path, start: LastStart) -> None:
    """Replace a file; its folder is made if it is missing. Raises CheckpointError, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(path.parent)
    rest = msgspec.msgpack.encode(start)
    with staged(path) as place:
        place.write_bytes(_MAGIC + hashlib.sha256(rest).digest() + rest)
    remove_oldest(path.parent, _SUFFIX, _MOST_FILES)


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Give the place where to write a file, which replaces the one at the path at the end."""
    place = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        yield place
        place.replace(path)
    finally:
        place.unlink(missing_ok=True)


def mark_used(path: Path) -> None:
    """Keep a file from being removed before others."""
    with suppress(OSError):
        os.utime(path)


def check_private(folder: Path) -> None:
    """Raise CheckpointError if another user can write there: programs are code."""
    found = folder.stat()
    own = found.st_uid in (os.geteuid(), 0)
    if not own or found.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        raise CheckpointError(
            f"{folder} is ignored: other users of this machine can write there, and programs are "
            "code; chmod go-w it"
        )


def remove_oldest(folder: Path, suffix: str, most: int) -> None:
    """Leave the files with this suffix that were used last."""
    with suppress(OSError):
        files = sorted(folder.glob(f"*{suffix}"), key=lambda path: path.stat().st_mtime)
        for path in files[:-most]:
            path.unlink(missing_ok=True)
