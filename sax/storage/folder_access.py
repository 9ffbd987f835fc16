"""Close a state folder to other users of the machine: it names models, checkpoints and people.

New files are private from the start (durable_file); those of an older version are closed here.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger(__name__)
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
