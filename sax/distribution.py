"""The distribution that sax is installed from: its name on a package index, version and commit.

What is imported is `sax`; on the public index that name belongs to another project.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib import metadata

NAME = "sax-serving"  # as in pyproject.toml; tests/sax/test_distribution.py reads other mentions
_PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_COMMIT = Path(__file__).with_name("commit.txt")  # made with a wheel: model_server/.../cpu/build.py


@cache
def version() -> str:
    """Return the version; in a clone that is not installed, the one in its pyproject.toml."""
    if (found := _installed()) is not None:
        return found.version
    if clone() is None:
        return "unknown"
    return tomllib.loads(_PROJECT.read_text())["project"]["version"]


def clone() -> Path | None:
    """Return the clone that this code runs in; None: it was installed from a wheel."""
    return _PROJECT.parent if _PROJECT.exists() else None


def commit() -> str:
    """Return the commit that the installed wheel was built of; "" where none was kept."""
    try:
        return _COMMIT.read_text().strip()
    except FileNotFoundError:
        return ""


def how_to_install(extra: str) -> str:
    """Return the command that adds an extra: by name only if this came from an index by name."""
    found = _installed()
    # A folder of metadata in a clone, which setuptools writes, does not tell where it came from.
    if clone() or found is None or found.read_text("direct_url.json") is not None:
        return f"pip install '.[{extra}]' in a clone of sax"
    return f"pip install '{NAME}[{extra}]'"


def _installed() -> metadata.Distribution | None:
    from importlib import metadata  # 20 ms, which most commands do without

    try:
        return metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        return None
