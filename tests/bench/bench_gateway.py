"""CPU per streamed token of the whole serving path: engine thread, gRPC, gateway and SSE.

The model server is real but for its runner, which takes 20 ms a step and no CPU. The client is
this process and is not counted. The figure is an upper bound on what gateway, gRPC and SSE add:
the engine's own thread and the detokeniser are in it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from sax.cli.cell_plan import ADMIN, GATEWAY
from tests.bench.cpu_time import cpu_s
from tests.bench.streams import burst
from tests.bench.table import Table
from tests.demo_model import ROOT
from tests.end_to_end.cell import Cell, local_plan

STREAMS = (1, 8, 32)
TOKENS = 400
ROUNDS = 3
MODEL = "/sax/test/steady"


class SteadyCell(Cell):
    """A cell whose model server is `steady_model`."""

    def __enter__(self) -> SteadyCell:
        self.start(ADMIN)
        self.start(GATEWAY)
        plan = self.plan
        self.model_server = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.bench.steady_model"),
                *("--admin", plan.admin_address, "--port", str(plan.model_port)),
            ],
            cwd=ROOT,
        )
        self.wait_until_up()
        self.publish("None", model=MODEL, model_path="steady")
        return self

    def close(self) -> None:
        self.model_server.terminate()
        self.model_server.wait(30)
        super().close()


def run() -> Table:
    table = Table(
        "CPU per streamed token",
        "Model server (engine thread, detokeniser, gRPC) plus gateway (gRPC, SSE), "
        f"{TOKENS} tokens per stream, a runner that takes 20 ms a step and no CPU; least of "
        f"{ROUNDS} rounds, user and system time of both processes. Budget: 60 us in total.",
        ("streams", "gateway us/token", "model server us/token", "total us/token"),
    )
    with tempfile.TemporaryDirectory() as folder, SteadyCell(local_plan(Path(folder))) as cell:
        pids = (cell.pid(GATEWAY), cell.model_server.pid)
        for streams in STREAMS:
            costs = [_round(cell.url, pids, streams) for _ in range(ROUNDS)]
            gateway, server = min(costs, key=sum)
            table.add(streams, f"{gateway:.0f}", f"{server:.0f}", f"{gateway + server:.0f}")
    return table


def _round(url: str, pids: tuple[int, int], streams: int) -> tuple[float, float]:
    before = [cpu_s(pid) for pid in pids]
    done = asyncio.run(burst(url, MODEL, streams, "once upon a time", TOKENS))
    after = [cpu_s(pid) for pid in pids]
    gateway, server = (1e6 * (b - a) / done.tokens for a, b in zip(before, after, strict=True))
    return gateway, server
