"""Versions that all hosts of a replica, and all users of a compiled program, must share."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from sax import distribution

_ROOT = Path(__file__).parents[2]
_ROOMS = ("sax", "model_server")
_KINDS = ("*.py", "*.cc", "*.h")


def versions() -> dict[str, str]:
    """Return the versions that must match on every host, with a digest of sax's sources."""
    from importlib.metadata import version

    return {
        "sax": f"{distribution.version()} ({source_digest()})",
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def source_digest(root: Path = _ROOT) -> str:
    """Return a digest of the sources, to distinguish builds of one version."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        sources = (path for kind in _KINDS for path in (root / room).rglob(kind))
        for path in sorted(sources):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
