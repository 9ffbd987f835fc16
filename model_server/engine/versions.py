"""Versions that all hosts of a replica, and all users of a compiled program, must share."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator
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

    A server asks when it starts: files that an upgrade replaces later are not what it runs.
    """
    return source_digest()


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
