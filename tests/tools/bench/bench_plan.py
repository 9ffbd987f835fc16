"""Planning for TPUs, and a server that finds its programs compiled: seconds, CPU and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sax.cli.local.server_plan import MODEL_SERVER
from tests.demo_model import ROOT, demo_model
from tests.end_to_end.cell import Cell, local_plan
from tests.tools.bench.cpu_time import cpu_s
from tests.tools.bench.table import Table

_PLANS = (("LmCloudSpmd175B32Test", "v5e:4x8"), ("Llama-3-8B", "v5e:2x4"))
_FLAGS = ("--slots=8", "--page_size=64")
_ROUNDS = 3


def run() -> list[Table]:
    return [_planning(), _compiled_ahead()]


def _planning() -> Table:
    table = Table(
        "Planning for a slice",
        "`sax plan MODEL --topology SLICE`, every bucket compiled by libtpu, a process of its own. "
        "Bar for the 175B: 60 s and 6 GB.",
        ("model", "slice", "s", "CPU s", "peak MiB"),
    )
    for model, topology in _PLANS:
        started = time.monotonic()
        command = [sys.executable, "-m", "model_server.plan", model, "--topology", topology]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) as child:
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with status {child.returncode}")
        wall_s = time.monotonic() - started
        busy_s = used.ru_utime + used.ru_stime
        table.add(model, topology, f"{wall_s:.0f}", f"{busy_s:.0f}", used.ru_maxrss // 1024)
    return table


def _compiled_ahead() -> Table:
    table = Table(
        "Programs compiled ahead",
        "SmolLM2-135M-Instruct (GGUF, 8 slots) from publish to its first answer, by a model server "
        "with an empty compile cache, with and without the set that `sax precompile` made; CPU is "
        f"that of the server. Best of {_ROUNDS}.",
        ("programs", "s", "CPU s"),
    )
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder) / "programs"
        _precompile(programs)
        flags = {"compiled at the start": (), "read from the set": (f"--programs={programs}",)}
        tries: dict[str, list[tuple[float, float]]] = {title: [] for title in flags}
        for _ in range(_ROUNDS):
            for title, more in flags.items():
                tries[title].append(_until_answer(Path(folder), *more))
    for title, found in tries.items():
        wall_s, used_s = min(found)
        table.add(title, f"{wall_s:.1f}", f"{used_s:.1f}")
    return table


def _precompile(programs: Path) -> None:
    command = ["precompile", str(demo_model()), "--topology", "cpu", "--to", str(programs)]
    subprocess.run([sys.executable, "-m", "sax.cli", *command, "--", *_FLAGS], cwd=ROOT, check=True)


def _until_answer(folder: Path, *flags: str) -> tuple[float, float]:
    """Seconds, and CPU seconds of the model server, until it has answered."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        plan = local_plan(Path(own), *_FLAGS, *flags)
        with Cell(replace(plan, compile_cache=Path(own) / "compiled")) as cell:
            pid = cell.pid(MODEL_SERVER)
            started, used = time.monotonic(), cpu_s(pid)
            cell.publish(str(demo_model()))
            cell.complete("How many?").raise_for_status()
            return time.monotonic() - started, cpu_s(pid) - used
