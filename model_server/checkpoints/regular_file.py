"""Opens the files of checkpoints: regular files only, since a FIFO or a device may never answer."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sax.errors import CheckpointError

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_MOST_FILES = 1_000_000  # of one checkpoint


def open_regular(path: Path) -> int:
    """Open a file for reading; return its descriptor. Raises OSError or CheckpointError."""
    _check(path, os.stat(path).st_mode)  # first: merely opening a device can act on it
    # Never waits, should another file have taken its place meanwhile.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path, most: int) -> bytes:
    """Read a file of at most `most` bytes. Raises OSError or CheckpointError.

    A file of the kernel that says it has no bytes, as those below /proc do, is read as empty.
    """
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise CheckpointError(f"{path} has {size} bytes; at most {most} are read")
        pieces: list[bytes] = []
        while size and (piece := file.read(size)):
            pieces.append(piece)
            size -= len(piece)
    return b"".join(pieces)


def check_files_below(folder: Path) -> None:
    """Raise CheckpointError if anything below the folder is neither a folder nor a regular file.

    For readers that open files by themselves.
    """
    waiting, seen = [folder], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                seen += 1
                if seen > _MOST_FILES:
                    raise CheckpointError(f"{folder} holds more than {_MOST_FILES} files")
                if entry.is_dir():
                    waiting.append(Path(entry.path))
                elif not entry.is_file():
                    _check(Path(entry.path), entry.stat().st_mode)


def _check(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")
        raise CheckpointError(f"{path} is {kind}: checkpoints are read from regular files only")
