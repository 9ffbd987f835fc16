"""How fast this machine multiplies and adds now: the ceiling over every prompt."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.demo_model import ROOT

_SOURCE = Path(__file__).with_suffix(".cc")
_FLAGS = ("-std=c++20", "-O2", "-march=native", "-pthread")


def gflop_per_s(threads: int) -> dict[str, float]:
    """Return the best of some tries for each kind of numbers: float32, bfloat16 and int8.

    Kinds for which the processor has no instruction are left out.
    """
    said = subprocess.run([str(_program()), str(threads)], capture_output=True, check=True)
    return fastest(said.stdout.decode())


def fastest(lines: str) -> dict[str, float]:
    """Return the highest figure of each name: several units may multiply the same numbers."""
    found: dict[str, float] = {}
    for name, rate in (line.split() for line in lines.splitlines()):
        found[name] = max(float(rate), found.get(name, 0.0))
    return found


@cache
def _program() -> Path:
    """Compile it with the machine's compiler, for the processor at hand."""
    program = ROOT / ".cache" / "peers" / _SOURCE.stem
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        raise RuntimeError(f"{_SOURCE.name} needs a C++ compiler: install g++, or set CXX")
    program.parent.mkdir(parents=True, exist_ok=True)
    unfinished = program.with_suffix(f".{os.getpid()}")  # others may be running it
    subprocess.run([compiler, *_FLAGS, str(_SOURCE), "-o", str(unfinished)], check=True)
    return unfinished.replace(program)
