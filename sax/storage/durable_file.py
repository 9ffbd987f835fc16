"""Files that are complete and on disk when the call returns, or not there at all.

A file is written to a staging file, synced, and only then linked or renamed to its name, so that
no crash leaves half a file under a real name; then the folder is synced, so the name survives too.
Our own code because no library we use calls fsync (see object_store).
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_STAGING = "staging"
_ABANDONED_S = 600.0  # a write takes a fraction of a second


@dataclass(frozen=True, slots=True)
class FileMode:
    """Permissions of new files and folders, less what the umask takes away."""

    file: int = 0o666
    folder: int = 0o777


PRIVATE = FileMode(file=0o600, folder=0o700)
SHARED = FileMode()


def prepare_folder(root: Path, mode: FileMode) -> None:
    """Create the root and remove files left half-written by writers that died."""
    _make_folder(root, mode)
    for staged in (root / _STAGING).glob("*"):
        # Recent files stay: another admin server may be writing here. A live writer that loses its
        # staging file, after a clock change, sees its write fail, which is safe.
        with contextlib.suppress(FileNotFoundError):
            if time.time() - staged.stat().st_mtime > _ABANDONED_S:
                staged.unlink()


def create_file(root: Path, path: Path, data: bytes, mode: FileMode) -> None:
    """Create a file below root.

    Raises FileExistsError, and then changed nothing; FileNotFoundError if there is no root.
    """
    # Unlike a rename, a link fails if the name is taken.
    _write(root, path, data, os.link, mode)


def replace_file(root: Path, path: Path, data: bytes, mode: FileMode) -> None:
    """Create or replace a file below root atomically. Raises FileNotFoundError for no root."""
    _write(root, path, data, os.replace, mode)


def _write(
    root: Path, path: Path, data: bytes, settle: Callable[[Path, Path], None], mode: FileMode
) -> None:
    # A root that was deleted stays so: an empty one in its place would look like a new store.
    if not root.is_dir():
        raise FileNotFoundError(root)
    staged = root / _STAGING / uuid.uuid4().hex
    _make_folder(staged.parent, mode, below=root)
    _make_folder(path.parent, mode, below=root)
    try:
        handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode.file)
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        settle(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    # Up to the root: a process that made a folder may have died before syncing its name.
    folder = path.parent
    while folder.is_relative_to(root):
        _sync_folder(folder)
        folder = folder.parent


def _make_folder(folder: Path, mode: FileMode, below: Path | None = None) -> None:
    """Create a folder and what is missing above it, but never `below` itself."""
    if not folder.is_dir():
        if folder == below:
            raise FileNotFoundError(folder)
        _make_folder(folder.parent, mode, below)
        try:
            folder.mkdir(mode.folder, exist_ok=True)
        except FileExistsError as exc:  # it is a file: not the FileExistsError we document
            raise NotADirectoryError(f"{folder} is not a folder") from exc
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
