"""Files of a model's last start on this machine: its programs, its weights and its chat template.

Each is replaced as a whole, so that servers of one model share it, and one that was cut or changed
is known. The programs: a digest of the rest, then the rest in MessagePack.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import shutil
import stat
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

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
    rest = read_kept(path)
    if rest is None:
        return LastStart()
    try:
        return msgspec.msgpack.decode(rest, type=LastStart)
    except msgspec.MsgspecError as exc:
        raise CheckpointError(f"{path} is of another version of sax: {exc}") from exc


def write_start(path: Path, start: LastStart) -> None:
    """Replace a file; its folder is made if it is missing. Raises CheckpointError, OSError."""
    write_kept(path, msgspec.msgpack.encode(start), _MOST_FILES)


def read_kept(path: Path) -> memoryview | None:
    """Return what a file holds behind its digest; None: there is none. Raises as `read_start`."""
    try:
        check_private(path.parent)
        body = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise CheckpointError(f"{path} cannot be read: {exc}") from exc
    told, rest = body[len(_MAGIC) : _BEFORE], memoryview(body)[_BEFORE:]
    if not body.startswith(_MAGIC) or hashlib.sha256(rest).digest() != told:
        raise CheckpointError(f"{path} is damaged")
    return rest


def write_kept(path: Path, rest: bytes, most: int) -> None:
    """Replace a file, and leave so many of its kind. Raises CheckpointError, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(path.parent)
    with staged(path) as place:
        place.write_bytes(_MAGIC + hashlib.sha256(rest).digest() + rest)
    remove_oldest(path.parent, path.suffix, most)


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


# --- The weights, as the model's device takes them.
#
# A server maps the file, so a start reads no checkpoint, packs nothing and copies nothing, and
# servers of one model share the memory. Its header and each array have a checksum.

WEIGHTS_SUFFIX = ".weights"
_WEIGHTS_MAGIC = b"sax weights 1\n"
_FIRST = struct.Struct("<QI")  # length and checksum of the header
_SECTOR = 512  # bytes that a disk writes at once
_THREADS = 4  # that check
_MOST_WEIGHTS = 8
_FREE = 10  # times the size of a file: free on its disk before it is written


class _KeptArray(msgspec.Struct, frozen=True, array_like=True):
    """One array."""

    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the data, which begins at a page
    checksum: int


class _KeptHeader(msgspec.Struct, frozen=True, array_like=True):
    key: str  # of all that the arrays depend on
    arrays: tuple[_KeptArray, ...]


def map_weights(path: Path, key: str) -> list[np.ndarray] | None:
    """Return the arrays of a file, read-only and aligned to pages; None: none has this key.

    Raises CheckpointError for a file that is damaged, or that others than its user could write.
    """
    try:
        check_private(path.parent)
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:  # ValueError: it is empty
        raise CheckpointError(f"{path} cannot be read: {exc}") from exc
    try:
        header, start = _header(data)
        if header.key != key:
            return None
        arrays = [_mapped(data, start, each) for each in header.arrays]
    except (struct.error, ValueError, TypeError, msgspec.MsgspecError) as exc:
        raise CheckpointError(f"{path} is damaged: {exc}") from exc
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="weights") as pool:
        sums = list(pool.map(_checksum, arrays))
    if sums != [each.checksum for each in header.arrays]:
        raise CheckpointError(f"{path} is damaged")
    return arrays


def write_weights(path: Path, key: str, arrays: Sequence[np.ndarray]) -> bool:
    """Replace a file; False: the disk has too little room. Raises CheckpointError, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(path.parent)
    if shutil.disk_usage(path.parent).free < _FREE * sum(array.nbytes for array in arrays):
        return False
    stored, offset = list[_KeptArray](), 0
    for array in arrays:
        stored.append(_KeptArray(str(array.dtype), array.shape, offset, _checksum(array)))
        offset += _padded(array.nbytes)
    header = msgspec.msgpack.encode(_KeptHeader(key, tuple(stored)))
    with staged(path) as place, place.open("wb") as file:
        file.write(_WEIGHTS_MAGIC + _FIRST.pack(len(header), zlib.crc32(header)) + header)
        start = _padded(file.tell())
        for array, each in zip(arrays, stored, strict=True):
            file.seek(start + each.offset)
            file.write(_bytes(array))
        file.truncate(start + offset)
    remove_oldest(path.parent, WEIGHTS_SUFFIX, _MOST_WEIGHTS)
    return True


def _header(data: mmap.mmap) -> tuple[_KeptHeader, int]:
    """Return the header, and where the arrays begin. Raises ValueError and as msgspec, struct."""
    length, checksum = _FIRST.unpack_from(data, len(_WEIGHTS_MAGIC))
    first = len(_WEIGHTS_MAGIC) + _FIRST.size
    body = data[first : first + length]
    if data[: len(_WEIGHTS_MAGIC)] != _WEIGHTS_MAGIC or zlib.crc32(body) != checksum:
        raise ValueError("its header is not whole")
    return msgspec.msgpack.decode(body, type=_KeptHeader), _padded(first + length)


def _mapped(data: mmap.mmap, start: int, each: _KeptArray) -> np.ndarray:
    kind: Any = np.dtype(getattr(ml_dtypes, each.dtype, each.dtype))
    flat = np.frombuffer(data, kind, math.prod(each.shape), start + each.offset)
    return flat.reshape(each.shape)


def _checksum(array: np.ndarray) -> int:
    """Return the CRC of the sums of each sector's words, and of what is left.

    A disk that fails, or a write that was cut, changes sectors. A CRC of all bytes takes five
    times as long.
    """
    data = _bytes(array)
    whole = len(data) // _SECTOR * _SECTOR
    words = np.frombuffer(data[:whole], np.uint64).reshape(-1, _SECTOR // 8)
    return zlib.crc32(data[whole:], zlib.crc32(words.sum(axis=1).data))


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _padded(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
