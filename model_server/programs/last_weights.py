"""File with the weights of a model's last start, as its device takes them.

A server maps it, so a start reads no checkpoint, packs nothing and copies nothing, and servers of
one model share the memory. It is replaced as a whole. A file that was cut or changed is known by
the checksums of its header and of each array.
"""

from __future__ import annotations

import math
import mmap
import shutil
import struct
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np

from model_server.programs.last_start import check_private, remove_oldest, staged
from sax.errors import CheckpointError

SUFFIX = ".weights"
_MAGIC = b"sax weights 1\n"
_FIRST = struct.Struct("<QI")  # length and checksum of the header
_SECTOR = 512  # bytes that a disk writes at once
_THREADS = 4  # that check
_MOST_FILES = 8
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
        file.write(_MAGIC + _FIRST.pack(len(header), zlib.crc32(header)) + header)
        start = _padded(file.tell())
        for array, each in zip(arrays, stored, strict=True):
            file.seek(start + each.offset)
            file.write(_bytes(array))
        file.truncate(start + offset)
    remove_oldest(path.parent, SUFFIX, _MOST_FILES)
    return True


def _header(data: mmap.mmap) -> tuple[_KeptHeader, int]:
    """Return the header, and where the arrays begin. Raises ValueError and as msgspec, struct."""
    length, checksum = _FIRST.unpack_from(data, len(_MAGIC))
    first = len(_MAGIC) + _FIRST.size
    body = data[first : first + length]
    if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(body) != checksum:
        raise ValueError("its header is not whole")
    return msgspec.msgpack.decode(body, type=_KeptHeader), _padded(first + length)


def _mapped(data: mmap.mmap, start: int, each: _KeptArray) -> np.ndarray:
    kind: Any = jnp.dtype(each.dtype)
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
