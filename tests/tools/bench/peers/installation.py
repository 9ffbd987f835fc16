"""Where a peer is installed: a virtual environment of its own in .cache/peers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.demo_model import ROOT

PEERS = ROOT / ".cache" / "peers"


def python_of(name: str) -> Path:
    return PEERS / name / "venv" / "bin" / "python"


def installed(name: str) -> bool:
    return _stamp(name).exists()


def install(name: str, packages: Sequence[str], unwanted: Sequence[str]) -> None:
    """Make its environment and let pip put the packages there; this may compile for minutes.

    `unwanted` are packages that others bring along and that do not work beside them.
    """
    python = python_of(name)
    subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    pip = [str(python), "-m", "pip"]
    # llama.cpp's build starts every compiler at once unless this says how many.
    jobs = {"CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())}
    subprocess.run([*pip, "install", *packages], check=True, env={**os.environ, **jobs})
    if unwanted:
        subprocess.run([*pip, "uninstall", "--yes", *unwanted], check=True)
    _stamp(name).write_text("\n".join(packages) + "\n")


def _stamp(name: str) -> Path:
    return PEERS / name / "installed"
