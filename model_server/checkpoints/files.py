"""The files of checkpoints: opened if they are regular files, and the small ones read whole.

A FIFO or a device may never answer. Errors become CheckpointError.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sax.errors import CheckpointError

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_MOST_FILES = 1_000_000  # of one checkpoint
_MOST_BYTES = 1 << 27  # the largest tokenizer.json known has a quarter of them
# Python's parser holds up every other thread until it is done: half a second at these bounds.
MOST_JSON = 1 << 25  # bytes
_MOST_VALUES = 2_000_000
_MOST_NESTED = 1_000_000  # lists and objects
_DIGITS = 40  # of a whole number; 64 bits have half of them


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
    for entry in entries_below(folder, into_links=True):
        if not (entry.is_dir() or entry.is_file()):
            _check(Path(entry.path), entry.stat().st_mode)


def entries_below(folder: Path, *, into_links: bool) -> Iterator[os.DirEntry[str]]:
    """Yield all entries of a folder and of those below it. Raises OSError.

    into_links: goes into linked folders, too. Raises CheckpointError for more than a million.
    """
    waiting, seen = [folder], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                seen += 1
                if seen > _MOST_FILES:
                    raise CheckpointError(f"{folder} holds more than {_MOST_FILES} files")
                yield entry
                if entry.is_dir(follow_symlinks=into_links):
                    waiting.append(Path(entry.path))


def _check(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")
        raise CheckpointError(f"{path} is {kind}: checkpoints are read from regular files only")


def read_text(path: Path) -> str:
    """Read text. Raises CheckpointError if the file cannot be read or is not UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as exc:
        raise CheckpointError(f"{path} is not UTF-8 text: {exc}") from exc


def read_bytes(path: Path) -> bytes:
    try:
        return read_regular(path, _MOST_BYTES)
    except OSError as exc:
        raise CheckpointError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read a JSON object; `missing`, if given, is returned for a file that does not exist."""
    if missing is not None and not path.exists():
        return missing
    try:
        value = parse_json(read_text(path))
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{path} is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def parse_json(text: str, *, unique: bool = False) -> Any:
    """Parse what a stranger wrote. Raises ValueError, or RecursionError if nested too deeply.

    unique: no object may have a name twice, of which parsers take the last.
    """
    if len(text) > MOST_JSON:
        raise ValueError(f"it has {len(text)} characters; at most {MOST_JSON} are read")
    if text.count("{") + text.count("[") > _MOST_NESTED or text.count(",") > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES} values or {_MOST_NESTED} lists")
    return json.loads(
        text, parse_int=_whole_number, object_pairs_hook=_different if unique else None
    )


def _different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {twice!r} twice")
    return found


def _whole_number(text: str) -> int:
    if len(text.removeprefix("-")) > _DIGITS:
        raise ValueError(f"it holds a number of {len(text)} digits, {text[:_DIGITS]}...")
    return int(text)
