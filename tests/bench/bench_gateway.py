"""CPU per streamed token of the serving path: gRPC, gateway and SSE; the engine thread beside it.

The model server is real but for its runner, which takes 20 ms a step and no CPU. The client is
this process and is not counted. What both processes burn without traffic is measured first and
shown as a row of its own: it is taken off the others, which would otherwise charge it to tokens.
The model server's share still holds its detokeniser and its request handler.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sax.cli.local.cell_plan import ADMIN, GATEWAY
from tests.bench.cpu_time import cpu_s, thread_cpu_s
from tests.bench.streams import burst
from tests.bench.table import Table
from tests.demo_model import ROOT
from tests.end_to_end.cell import Cell, local_plan

STREAMS = (1, 8, 32)
TOKENS = 400
ROUNDS = 3
MODEL = "/sax/test/steady"
IDLE_S = 10


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
            stdout=subprocess.PIPE,
            text=True,
        )
        self.wait_until_up()
        self.publish("None", model=MODEL, model_path="steady")
        asyncio.run(burst(self.url, MODEL, 1, "once", 10))
        assert self.model_server.stdout is not None
        self.engine_thread = int(self.model_server.stdout.readline())
        return self

    def spent(self) -> Spent:
        """What each part has used so far."""
        server = self.model_server.pid
        engine_s = thread_cpu_s(server, self.engine_thread)
        return Spent(time.monotonic(), cpu_s(self.pid(GATEWAY)), cpu_s(server) - engine_s, engine_s)

    def close(self) -> None:
        self.model_server.terminate()
        self.model_server.wait(30)
        super().close()


@dataclass(frozen=True)
class Spent:
    """CPU seconds of each part, and when."""

    at_s: float
    gateway_s: float
    server_s: float  # all but the engine's thread
    engine_s: float

    def since(self, before: Spent) -> Spent:
        pairs = zip(vars(self).values(), vars(before).values(), strict=True)
        return Spent(*(now - then for now, then in pairs))

    def without_idle(self, idle: Spent) -> Spent:
        """Less what the same time would have cost without traffic."""
        part = self.at_s / idle.at_s
        pairs = zip(vars(self).values(), vars(idle).values(), strict=True)
        return Spent(*(used - rest * part for used, rest in pairs))

    def cells(self, per: float) -> tuple[str, ...]:
        """Gateway, server, both, engine: microseconds each."""
        path_s = self.gateway_s + self.server_s
        parts = (self.gateway_s, self.server_s, path_s, self.engine_s)
        return tuple(f"{1e6 * part / per:.0f}" for part in parts)


def run() -> Table:
    table = Table(
        "CPU per streamed token",
        "Model server (event loop, request handler, detokeniser, gRPC) plus gateway (gRPC, SSE); "
        "the engine's thread beside it. "
        f"{TOKENS} tokens per stream, a runner that takes 20 ms a step and no CPU; least of "
        f"{ROUNDS} rounds, user and system time, in us per token, less what the processes use "
        "without traffic, which is the first row, in us per second. Budget: 60 us in total.",
        ("streams", "gateway", "model server", "total", "engine thread"),
    )
    with tempfile.TemporaryDirectory() as folder, SteadyCell(local_plan(Path(folder))) as cell:
        time.sleep(2)  # what start-up left to do
        before = cell.spent()
        time.sleep(IDLE_S)
        idle = cell.spent().since(before)
        table.add("none: us/s", *idle.cells(idle.at_s))
        for streams in STREAMS:
            costs = [_round(cell, idle, streams) for _ in range(ROUNDS)]
            least = min(costs, key=lambda cost: cost.gateway_s + cost.server_s)
            table.add(streams, *least.cells(streams * TOKENS))
    return table


def _round(cell: SteadyCell, idle: Spent, streams: int) -> Spent:
    before = cell.spent()
    asyncio.run(burst(cell.url, MODEL, streams, "once upon a time", TOKENS))
    return cell.spent().since(before).without_idle(idle)
