"""Computing through a proxy server and a worker, beside the same on this machine's own devices.

All of it in turns, so that a noisy machine slows every way alike; who is not measured stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.bench.cpu_time import cpu_s
from tests.bench.islands.told_process import ROOT, ToldProcess
from tests.bench.table import Table
from tests.demo_model import demo_model
from tests.hosts.slow_proxy import slow_proxy
from tests.model_server.islands.decode_client import Decoded
from tests.model_server.islands.round_trips import RoundTrips
from tests.model_server.pathways.roles.test_deployment import DeploymentProcesses

ROUNDS = 7
HERE, THROUGH, AFAR = "here", "through", "10 ms away"  # the ways of a client to its devices
DELAY_S = 0.005  # each way
# The modules, and what they are told: a name, the line, and tokens or results of each step.
STEPS = (
    ("330 arguments, nothing computed", "tests.bench.islands.bare_step", "100"),
    ("SmolLM2-135M, 1 stream", "tests.model_server.islands.decode_client", "1 64"),
    ("SmolLM2-135M, 8 streams", "tests.model_server.islands.decode_client", "8 48"),
)
COUNTED_TOKENS = 64
WEIGHTS = (1, 2, 4, 8)
SHARED_S, SHARED_ROUNDS = 20, 2


class Turn(NamedTuple):
    """One turn of one way: milliseconds per step."""

    step: float
    client: float  # processor time
    proxy: float
    worker: float


def run() -> list[Table]:
    # The throughput of a model's stages on several islands belongs here, as a table of its own.
    return [costs(), requests(), shares()]


@contextlib.contextmanager
def deployment() -> Iterator[DeploymentProcesses]:
    """One island of one device, and its proxy server."""
    with tempfile.TemporaryDirectory() as folder:
        made = DeploymentProcesses(Path(folder), "cpu:1", 1)
        try:
            made.worker("worker", 0)
            made.proxy()
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def delayed(port: int) -> Iterator[int]:
    """Yield a port from which bytes take DELAY_S to another and back."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    loop.set_exception_handler(lambda *_: None)  # of connections that end with their client
    ports: list[int] = []

    async def relay() -> None:
        async with slow_proxy("127.0.0.1", port, delay_s=DELAY_S) as proxy:
            ports.append(int(proxy.address.rpartition(":")[2]))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(relay(),))
    thread.start()
    ready.wait()
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


class Ways:
    """One client per way to the devices, for one module."""

    def __init__(
        self, module: str, ports: Mapping[str, int], deployed: DeploymentProcesses
    ) -> None:
        arguments = [str(demo_model())] if "decode" in module else []
        self._deployed = deployed
        self._clients = {HERE: ToldProcess(module, *arguments, JAX_PLATFORMS="cpu")}
        self._clients[HERE].wait_until_ready()
        for way, port in ports.items():
            target = {"JAX_PLATFORMS": "proxy", "JAX_BACKEND_TARGET": f"grpc://127.0.0.1:{port}"}
            self._clients[way] = ToldProcess(module, *arguments, **target)
            self._clients[way].wait_until_ready()

    def turns(self, line: str) -> dict[str, list[Turn]]:
        """Let each client do what the line says, in turns."""
        self._turn_of_each(line)  # for the first pages and threads
        turns: dict[str, list[Turn]] = {way: [] for way in self._clients}
        for _ in range(ROUNDS):
            for way, turn in self._turn_of_each(line).items():
                turns[way].append(turn)
        return turns

    def _turn_of_each(self, line: str) -> dict[str, Turn]:
        return {way: self._turn(way, line) for way in self._clients}

    def _turn(self, way: str, line: str) -> Turn:
        with contextlib.ExitStack() as stack:
            for other in self._clients.keys() - {way}:
                stack.enter_context(self._clients[other].standing_still())
            before = self._servers_s()
            told = msgspec.json.decode(self._clients[way].ask(line), type=Decoded)
            after = self._servers_s()
        proxy, worker = (now - then for now, then in zip(after, before, strict=True))
        steps = told.steps or 1
        return Turn(told.step_ms, told.cpu_ms, 1e3 * proxy / steps, 1e3 * worker / steps)

    def _servers_s(self) -> tuple[float, float]:
        return cpu_s(self._deployed.pid("proxy")), cpu_s(self._deployed.pid("worker"))

    def end(self) -> None:
        for client in self._clients.values():
            client.end()


def costs() -> Table:
    table = Table(
        "A step through a proxy server and a worker",
        "The client has one step in flight and fetches the result of each. Milliseconds, medians "
        f"of {ROUNDS} turns; processor time of the three processes per step, the model's own in "
        "the worker. The goal: at most 2.5 ms added. In the last column 10 ms more pass between "
        "request and answer, on a relay between client and proxy server.",
        ("", "here", "through", "added", "ratio", "client's CPU", "proxy server's", "worker's",
         f"{AFAR}"),
    )  # fmt: skip
    for module in dict.fromkeys(module for _, module, _ in STEPS):
        with deployment() as deployed, delayed(deployed.proxy_port) as far:
            ways = Ways(module, {THROUGH: deployed.proxy_port, AFAR: far}, deployed)
            for name, of, line in STEPS:
                if of == module:
                    table.add(name, *_cells(ways.turns(line)))
            ways.end()
    return table


def _cells(turns: Mapping[str, Sequence[Turn]]) -> list[str]:
    here, through, afar = (
        [statistics.median(column) for column in zip(*turns[way], strict=True)]
        for way in (HERE, THROUGH, AFAR)
    )
    step, client, proxy, worker = through
    cells = [f"{here[0]:.1f}", f"{step:.1f}", f"{step - here[0]:.1f}", f"{step / here[0]:.2f}"]
    return [*cells, f"{client:.1f}", f"{proxy:.1f}", f"{worker:.1f}", f"{afar[0]:.1f}"]


def requests() -> Table:
    """Count what a decoding client sends, which no machine's noise changes."""
    command = [sys.executable, "-m", "tests.model_server.islands.round_trips"]
    done = subprocess.run(
        [*command, str(demo_model()), str(COUNTED_TOKENS)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NPROC": "16"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    counts = msgspec.json.decode(done.stdout, type=RoundTrips).sent
    table = Table(
        "Requests of a decode step on an island",
        f"SmolLM2-135M, one stream of {COUNTED_TOKENS} tokens. Requests and calls per token; while "
        "they are counted, nothing but fetches is answered, so a token takes one round trip.",
        ("request or call", "per token", "waited for"),
    )
    for name, count in sorted(counts.items(), key=lambda each: -each[1]):
        waited = "yes" if name in ("copy_to_host_buffer_request", "HostBufferLookup") else ""
        table.add(
            name.removesuffix("_request").replace("_", " "),
            f"{count / COUNTED_TOKENS:.1f}",
            waited,
        )
    return table


def shares() -> Table:
    table = Table(
        "Shares of clients of one island",
        f"Four clients with weights compete for {SHARED_S} s, {SHARED_ROUNDS} times; all "
        "works take as long. The goal: shares within 10 % of the weights'.",
        ("weight", "works done", "share", "share by weight", "off by"),
    )
    with deployment() as deployed:
        clients = [
            ToldProcess("tests.bench.islands.sharer", str(deployed.proxy_port), str(weight))
            for weight in WEIGHTS
        ]
        for client in clients:
            client.wait_until_ready()
        done = [0] * len(WEIGHTS)
        for _ in range(SHARED_ROUNDS):
            for client in clients:
                client.tell(str(SHARED_S))
            done = [
                count + int(client.answer()) for count, client in zip(done, clients, strict=True)
            ]
        for client in clients:
            client.end()
    for weight, count in zip(WEIGHTS, done, strict=True):
        share, wanted = count / sum(done), weight / sum(WEIGHTS)
        off = f"{100 * (share / wanted - 1):+.0f} %"
        table.add(weight, count, f"{share:.3f}", f"{wanted:.3f}", off)
    return table


if __name__ == "__main__":
    print("\n".join(table.markdown() for table in run()))
