"""The servers of the tutorials as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sax.cli.commands import saxml
from tests.demo_model import ROOT

_HERE = Path(__file__).parent
NAMES = {1: "generation_one.py", 2: "generation_two.py"}


@contextmanager
def running(generation: int, admin: str, packages: Path) -> Iterator[int]:
    """Run a server for the cell of this admin server, with the shim in `packages`; its port."""
    saxml.install_shim(packages)
    path = os.pathsep.join([str(ROOT), str(packages)])
    env = {**os.environ, "SAX_ADMIN": admin, "PYTHONPATH": path}
    words = [sys.executable, str(_HERE / NAMES[generation])]
    with subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()
