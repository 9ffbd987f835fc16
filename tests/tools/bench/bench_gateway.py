"""Cost of the serving path: CPU per streamed token, memory of idle streams, the first token.

The model server is real but for its runner, whose steps take a fixed time and no CPU. The client is
this process and is not counted. What both processes burn without traffic is measured first and
shown as a row of its own: it is taken off the others, which would otherwise charge it to tokens.
The model server's share still holds its detokeniser and its request handler.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from sax.cli.local.cell_plan import ADMIN, GATEWAY, CellPlan
from sax.client.async_client import AsyncClient
from sax.types import GenerateRequest, SamplingParams
from tests.demo_model import ROOT
from tests.end_to_end.cell import Cell, local_plan
from tests.processes import resident
from tests.tools.bench.cpu_time import cpu_s, thread_cpu_s
from tests.tools.bench.streams import burst, open_streams, read_stream
from tests.tools.bench.table import Table

STREAMS = (1, 8, 32, 64)
TOKENS = 400
ROUNDS = 3
MODEL = "/sax/test/steady"
IDLE_S = 10
IDLE_STREAMS = 1000
IDLE_STEP_S = 2.0  # of a thousand streams together: each says something this seldom
FIRST_TOKENS = 200


class SteadyCell(Cell):
    """A cell whose model server is `steady_model`."""

    def __init__(self, plan: CellPlan, *, slots: int = 64, step_s: float = 0.02) -> None:
        super().__init__(plan)
        self._flags = ("--slots", str(slots), "--step_s", str(step_s))

    def __enter__(self) -> SteadyCell:
        self.start(ADMIN)
        self.start(GATEWAY)
        plan = self.plan
        self.model_server = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.tools.bench.steady_model"),
                *("--admin", plan.admin_address, "--port", str(plan.model_port)),
                *self._flags,
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


def run() -> list[Table]:
    return [cpu_per_token(), idle_streams(), first_tokens()]


def cpu_per_token() -> Table:
    table = Table(
        "CPU per streamed token",
        "Model server (event loop, request handler, detokeniser, gRPC) plus gateway (gRPC, SSE); "
        "the engine's thread beside it. "
        f"{TOKENS} tokens per stream, a runner that takes 20 ms a step and no CPU; least of "
        f"{ROUNDS} rounds, user and system time, in us per token, less what the processes use "
        "without traffic, which is the first row, in us per second. Budget at 64 streams: 25 us of "
        "the gateway, 60 us in total.",
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


def idle_streams() -> Table:
    """Resident memory of the gateway with many streams that are open and say little."""
    table = Table(
        "Memory of idle streams",
        f"Resident memory of the gateway before, with {IDLE_STREAMS} open streams that get a token "
        f"every {IDLE_STEP_S:g} s, and 10 s after they were closed. Budget: 200 MB more.",
        ("streams", "MB before", "MB with them", "more", "MB after"),
    )
    with tempfile.TemporaryDirectory() as folder:
        plan = local_plan(Path(folder))
        with SteadyCell(plan, slots=IDLE_STREAMS, step_s=IDLE_STEP_S) as cell:
            gateway = cell.pid(GATEWAY)
            before = resident(gateway)
            within = asyncio.run(_resident_within(cell, gateway))
            time.sleep(10)
            sizes = (before, within, within - before, resident(gateway))
            table.add(IDLE_STREAMS, *(f"{size / 1e6:.0f}" for size in sizes))
    return table


async def _resident_within(cell: SteadyCell, gateway: int) -> int:
    async with open_streams(cell.url, MODEL, IDLE_STREAMS):
        await asyncio.sleep(10)
        return resident(gateway)


def first_tokens() -> Table:
    """Time to the first token through the gateway, beside the SDK's straight to the server."""
    table = Table(
        "First token through the gateway",
        f"Milliseconds until the first token of {FIRST_TOKENS} requests, one after the other, in "
        "turns: over HTTP through the gateway, and with the SDK straight to the model server; its "
        "step takes 20 ms. Budget: 5 ms more at the median.",
        ("way", "50 of 100", "90 of 100", "99 of 100"),
    )
    with tempfile.TemporaryDirectory() as folder, SteadyCell(local_plan(Path(folder))) as cell:
        direct, through = asyncio.run(_in_turns(cell))
    for way, times in (("SDK", direct), ("gateway", through)):
        table.add(way, *(f"{1e3 * each:.1f}" for each in _percentiles(times)))
    pairs = zip(_percentiles(through), _percentiles(direct), strict=True)
    table.add("difference", *(f"{1e3 * (one - other):.1f}" for one, other in pairs))
    return table


async def _in_turns(cell: SteadyCell) -> tuple[list[float], list[float]]:
    direct: list[float] = []
    through: list[float] = []
    async with (
        AsyncClient(cell.plan.admin_address) as client,
        httpx.AsyncClient(timeout=60, trust_env=False) as http,
    ):
        for _ in range(FIRST_TOKENS):
            direct.append(await _first_of_sdk(client))
            body = {"model": MODEL, "prompt": "once", "max_tokens": 2, "stream": True}
            through.append((await read_stream(http, cell.url, body)).first_token_s)
    return direct, through


async def _first_of_sdk(client: AsyncClient) -> float:
    began_s = time.perf_counter()
    request = GenerateRequest(model_id=MODEL, prompt="once", sampling=SamplingParams(max_tokens=2))
    first_s = 0.0
    async for chunk in client.generate(request):
        if chunk.token_ids:
            first_s = first_s or time.perf_counter() - began_s
    return first_s


def _percentiles(times: list[float]) -> tuple[float, ...]:
    cuts = statistics.quantiles(times, n=100)
    return (cuts[49], cuts[89], cuts[98])
