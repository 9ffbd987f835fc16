"""The demo model as the peers read it: the same numbers, in bfloat16 or in the file's 4 bits."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.demo_model import ROOT, demo_model
from tests.tools.bench.peers.installation import PEERS

FOLDER = PEERS / "weights"


@dataclass(frozen=True, slots=True)
class Weights:
    """One format, in the files that hold it; Hugging Face's folders hold no GGUF formats."""

    name: str
    gguf: Path
    float16: Path  # GGUF for who reads no bfloat16 there; 4 bits need none
    folder: Path | None = None
    experts: bool = False

    @property
    def quantised(self) -> bool:
        return self.folder is None


def four_bits() -> Weights:
    return Weights("4-bit", demo_model(), demo_model())


def bfloat16() -> Weights:
    """Write the files from the demo model's, unless an earlier race did."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    gguf = _converted(demo_model(), "SmolLM2-135M-Instruct.BF16.gguf", "bfloat16")
    float16 = _converted(gguf, "SmolLM2-135M-Instruct.F16.gguf", "float16")
    folder = _converted(demo_model(), "SmolLM2-135M-Instruct", "bfloat16")
    return Weights("bfloat16", gguf, float16, folder)


FORMATS = {"bf16": bfloat16, "4bit": four_bits}


def _converted(source: Path, name: str, dtype: str) -> Path:
    path = FOLDER / name
    if not path.exists():
        words = ["convert", str(source), str(path), "--dtype", dtype]
        subprocess.run([sys.executable, "-m", "sax.cli", *words], check=True, cwd=ROOT)
    return path
