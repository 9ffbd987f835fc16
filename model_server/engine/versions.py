"""Versions that all hosts of a replica, and all users of a compiled program, must share."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from sax import distribution

_ROOT = Path(__file__).parents[2]
_ROOMS = ("sax", "model_server")
_KINDS = (".py", ".cc", ".h")


def versions() -> dict[str, str]:
    """Return the versions that must match on every host, with a digest of sax's sources."""
    from importlib.metadata import version

    return {
        "sax": f"{distribution.version()} ({own_digest()})",
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


@cache
def own_digest() -> str:
    """Return the digest of this process's sources as they were at the first call.

    A server asks when it starts: files that an upgrade replaces later are not what it runs. If some
    have changed between its imports and the call, nobody can tell what it runs, and no other
    process has its digest.
    """
    digest = source_digest()
    return f"{digest}, edited under process {os.getpid()}" if sources_changed() else digest


def sources_changed(root: Path = _ROOT, since_s: float | None = None) -> bool:
    """Return True if a source has changed since this process began, or another time.

    What it imported before and after is then of two versions: it must not keep programs under the
    digest of either.
    """
    since_s = _began_s() if since_s is None else since_s
    paths = (path for room in _ROOMS for path in _sources(root / room))
    return any(os.stat(path).st_ctime > since_s for path in paths)


@cache
def _began_s() -> float:
    """Return when this process began, in seconds since 1970; elsewhere than on Linux about so."""
    with suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up_s = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK")
    return _IMPORTED_S


_IMPORTED_S = time.time()


def source_digest(root: Path = _ROOT) -> str:
    """Return a digest of the sources, to distinguish builds of one version."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted(_sources(root / room)):
            name = os.path.relpath(path, root).replace(os.sep, "/")
            digest.update(name.encode() + b"\0" + Path(path).read_bytes())
    return digest.hexdigest()[:12]


def _sources(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each != "__pycache__"]
        yield from (os.path.join(place, file) for file in files if file.endswith(_KINDS))
