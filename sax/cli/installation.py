"""Text of `sax --version`: version, build, native kernels, jax and Python. Imports no jax."""

from __future__ import annotations

import platform
from importlib import metadata

from sax import distribution
from sax.finding import CHECKS


def installation() -> str:
    """Return the lines; the first one is for programs."""
    kernels = CHECKS["kernels"]().text if "kernels" in CHECKS else "no model server is installed"
    rows = {
        "build": _build(),
        "kernels": kernels,
        "jax": _jax(),
        "Python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
    }
    lines = (f"  {name:<8} {text}" for name, text in rows.items())
    return "\n".join((f"sax {distribution.version()}", *lines))


def _build() -> str:
    if commit := distribution.commit():
        return f"{distribution.NAME} of commit {commit}"
    clone = distribution.clone()
    return f"the sources in {clone}" if clone else f"{distribution.NAME} of an unknown commit"


def _jax() -> str:
    try:
        return f"{metadata.version('jax')}, jaxlib {metadata.version('jaxlib')}"
    except metadata.PackageNotFoundError:
        return f"not installed: {distribution.how_to_install('cpu')}"
