"""An environment outside the tree in which a wheel was installed, as a user's is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ANSWER_S = 600
_QUESTION = "What is the capital of France?"
# Variables that would lead a command to a cell, or to sources, of this machine.
_OURS = ("SAX_ADMIN", "SAX_ROOT", "SAX_TOKEN", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class Environment:
    """A virtual environment, and a folder without sources in which its programs run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"

    def run(self, *words: str | Path, timeout: float = ANSWER_S) -> str:
        """Run a program of the environment; returns its stdout. Raises CalledProcessError."""
        program, *rest = words
        environ = {name: text for name, text in os.environ.items() if name not in _OURS}
        environ["XDG_CACHE_HOME"] = str(self.folder / "cache")
        done = subprocess.run(
            (self.folder / "bin" / program, *rest),
            cwd=self.folder,
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=timeout,
        )
        return done.stdout

    def versions(self) -> str:
        return self.run("sax", "--version")

    def answer(self, model: Path) -> str:
        """Start a cell with this model and return its answer about France."""
        return self.run("sax", "run", model.absolute(), "-p", _QUESTION, "--max-tokens", "24")


def environment(folder: Path, *requirements: str) -> Environment:
    """Make an environment with these requirements: by uv, which is quick, or by pip.

    uv does not read pip's settings, so pip follows where uv fails.
    """
    subprocess.run((sys.executable, "-m", "venv", folder), check=True)
    made = Environment(folder)
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    if uv := shutil.which("uv", path=beside):
        words = ("pip", "install", "--quiet", "--python", made.python, *requirements)
        if not subprocess.run((uv, *words), check=False).returncode:
            return made
    made.run("python", "-m", "pip", "install", "--quiet", *requirements, timeout=3600)
    return made
