"""Computing through a proxy server and a worker, beside the same on this machine's own devices.

All of it in turns, so that a noisy machine slows every way alike; who is not measured stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
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

from tests.demo_model import demo_model
from tests.hosts.slow_proxy import slow_proxy
from tests.model_server.islands.decode_client import Decoded
from tests.model_server.islands.round_trips import RoundTrips
from tests.model_server.pathways.roles.test_deployment import DeploymentProcesses
from tests.tools.bench.cpu_time import cpu_s
from tests.tools.bench.islands.told_process import ROOT, ToldProcess
from tests.tools.bench.table import Table

ROUNDS = 7
HERE, THROUGH, AFAR = "here", "through", "10 ms away"  # the ways of a client to its devices
DELAY_S = 0.005  # each way
DECODES = "tests.model_server.islands.decode_client"
# The clients: a module, and steps per launch; then a name and the line that they are told.
STEPS = {
    ("tests.tools.bench.islands.bare_step", 1): {"330 arguments, nothing computed": "100"},
    (DECODES, 1): {
        "SmolLM2-135M, 1 stream, each step a launch": "1 64",
        "SmolLM2-135M, 8 streams, each step a launch": "8 48",
    },
    (DECODES, 4): {
        "SmolLM2-135M, 1 stream, 4 steps a launch": "1 64",
        "SmolLM2-135M, 8 streams, 4 steps a launch": "8 48",
    },
}
COUNTED_TOKENS = 64
WEIGHTS = (1, 2, 4, 8)
ROWS, ROW_TOKENS, STAGED_ROUNDS = 64, 64, 2  # of a step, and tokens of each stream
LAYERS = 8
SHARED_S, SHARED_ROUNDS = 20, 2


class Turn(NamedTuple):
    """One turn of one way: milliseconds per step."""

    step: float
    client: float  # processor time
    proxy: float
    worker: float


def run() -> list[Table]:
    return [costs(), requests(), shares(), stages()]


@contextlib.contextmanager
def deployment(islands: int = 1) -> Iterator[DeploymentProcesses]:
    """Islands of one device, on a core of its own where there are several; and the proxy server."""
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        made = DeploymentProcesses(Path(folder), "cpu:1", islands)
        try:
            for island, core in zip(range(islands), itertools.cycle(sorted(cores))):
                os.sched_setaffinity(0, {core} if islands > 1 else cores)  # children inherit it
                made.worker("worker" if islands == 1 else f"worker {island}", island)
            os.sched_setaffinity(0, cores)
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
        self, module: str, launched: int, ports: Mapping[str, int], deployed: DeploymentProcesses
    ) -> None:
        """launched: steps of one launch, behind the proxy server."""
        arguments = [str(demo_model()), "{}"] if module == DECODES else []
        self._deployed = deployed
        self._clients = {HERE: ToldProcess(module, *arguments, JAX_PLATFORMS="cpu")}
        arguments += [str(launched)] if arguments else []
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
        "The client has one launch in flight and fetches its results. Milliseconds per step, "
        f"medians of {ROUNDS} turns; processor time of the three processes per step, the model's "
        "own in the worker, beside which it competes for two cores. The goal: at most 2.5 ms "
        "added. Behind a proxy server a launch has 4 steps by default. In the last column 10 ms "
        "more pass between request and answer, on a relay between client and proxy server.",
        ("", "here", "through", "added", "ratio", "client's CPU", "proxy server's", "worker's",
         f"{AFAR}"),
    )  # fmt: skip
    for (module, launched), lines in STEPS.items():
        with deployment() as deployed, delayed(deployed.proxy_port) as far:
            ports = {THROUGH: deployed.proxy_port, AFAR: far}
            ways = Ways(module, launched, ports, deployed)
            for name, line in lines.items():
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
            ToldProcess("tests.tools.bench.islands.sharer", str(deployed.proxy_port), str(weight))
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


def stages() -> Table:
    """Compare a model in two stages with two islands that compute one of them each, all the time.

    Two islands on one machine share its memory and caches, so the ideal is measured on both.
    """
    half, both = "half of the layers, on each of two islands: the ideal", "in two stages"
    ways = {
        "all layers on one island": [(LAYERS, 1, "0")],
        half: [(LAYERS // 2, 1, "0"), (LAYERS // 2, 1, "1")],
        f"all layers, {both} on two islands": [(LAYERS, 2, "0,1")],
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    with deployment(islands=2) as deployed:
        clients = {
            way: [_staged(deployed.proxy_port, *each) for each in of] for way, of in ways.items()
        }
        for each in itertools.chain(*clients.values()):
            each.wait_until_ready()
        for _ in range(STAGED_ROUNDS):
            for way, together in clients.items():
                others = [each for of in clients.values() if of is not together for each in of]
                rates[way].append(_rate_of(together, ROWS * ways[way][0][1], others))
        for each in itertools.chain(*clients.values()):
            each.end()
    table = Table(
        "Stages on two islands",
        f"A model of {LAYERS} layers of width 1,024 in float32, decoding {ROWS} streams per step; "
        "in two stages, two lanes of as many, so that both islands always have a step. Each "
        "island has one core, which it shares with the client and the proxy server. Tokens per "
        f"second of a client, medians of {STAGED_ROUNDS} turns. The goal: within 15 % of the "
        "ideal.",
        ("", "streams", "tokens/s", "of the ideal"),
    )
    ideal = statistics.median(rates[half])
    for way, of in ways.items():
        found = statistics.median(rates[way])
        streams = ROWS * of[0][1]
        table.add(way, streams, f"{found:.0f}", f"{100 * found / ideal:.0f} %")
    return table


def _rate_of(clients: Sequence[ToldProcess], streams: int, others: Sequence[ToldProcess]) -> float:
    """Return the mean rate of clients that decode at the same time; the others stand still."""
    with contextlib.ExitStack() as stack:
        for other in others:
            stack.enter_context(other.standing_still())
        for client in clients:
            client.tell(f"{streams} {ROW_TOKENS}")
        return statistics.mean(float(client.answer()) for client in clients)


def _staged(port: int, layers: int, count: int, islands: str) -> ToldProcess:
    overrides = {
        "ICI_MESH_SHAPE": "null",
        "NUM_LAYERS": str(layers),
        "MODEL_DIMS": "1024",
        "HIDDEN_DIMS": "4096",
        "NUM_HEADS": "8",
        "DIMS_PER_HEAD": "128",
        "VOCAB_SIZE": "512",
        "DTYPE": '"float32"',
        "SPECULATION": '"off"',
        "NUM_STAGES": str(count),
    }
    return ToldProcess(
        "tests.tools.bench.islands.staged_client",
        json.dumps(overrides),
        str(ROWS * count),
        islands,
        JAX_PLATFORMS="proxy",
        JAX_BACKEND_TARGET=f"grpc://127.0.0.1:{port}",
    )


if __name__ == "__main__":
    print("\n".join(table.markdown() for table in run()))
