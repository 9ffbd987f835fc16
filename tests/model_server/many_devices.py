"""Runs a script of the tests in a process with eight fake devices.

The number of devices is fixed before jax starts, so such a script has a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.processes import on_devices

ROOT = Path(__file__).parents[2]
Runs = Sequence[str]  # CASE:1x2x4 each: a golden case on a mesh


def run_script(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    subprocess.run(command, env=on_devices(8), cwd=ROOT, check=True, timeout=1500)


def results_by_set(module: str, folder: Path, sets: Sequence[Runs]) -> Callable[[str], Any]:
    """Return the function from a run to its result; a process computes all runs of its set."""

    def of(run: str) -> Any:
        number, runs = next(found for found in enumerate(sets) if run in found[1])
        path = folder / f"{number}.json"
        if not path.exists():
            run_script(module, str(path), *runs)
        found = json.loads(path.read_text())[run]
        assert not isinstance(found, str), found
        return found

    return of


def write_results(compute: Callable[[str, list[int]], Any]) -> None:
    """Write what a case on a mesh gives, or its error, for each run; the script's own part."""
    path, *runs = sys.argv[1:]
    results: dict[str, Any] = {}
    for run in runs:
        case, _, sizes = run.partition(":")
        try:
            results[run] = compute(case, [int(size) for size in sizes.split("x")])
        except Exception:
            results[run] = traceback.format_exc()
    Path(path).write_text(json.dumps(results))
