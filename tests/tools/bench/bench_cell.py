"""A whole cell with the demo model: start-up, first token, throughput over HTTP, memory."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from sax.cli.local.server_plan import MODEL_SERVER
from tests.demo_model import ROOT, demo_model
from tests.end_to_end.cell import COMPILE_CACHE, SMOLLM2, Cell, free_ports, local_plan
from tests.tools.bench.cpu_time import cpu_s, trees
from tests.tools.bench.streams import burst
from tests.tools.bench.table import Table

STREAMS = (1, 8, 32)
TOKENS = 48
ROUNDS = 5
_MIB = 2**20


def run() -> list[Table]:
    with tempfile.TemporaryDirectory() as folder, Cell(local_plan(Path(folder))) as cell:
        cell.publish(str(demo_model()))
        served = _served(cell)
        first = _first_token(cell)
        memory = _memory(cell)
    return [_start_up(), first, served, memory]


def _served(cell: Cell) -> Table:
    table = Table(
        "Served over HTTP",
        f"Streaming completions, {TOKENS} tokens each, closed bursts, prompts of about 64 tokens, "
        f"client on the same cores; median of {ROUNDS}.",
        ("streams", "tokens/s", "median first token ms"),
    )
    prompt = _prompt(cell, 64)
    for streams in STREAMS:
        bursts = [
            asyncio.run(burst(cell.url, SMOLLM2, streams, prompt, TOKENS)) for _ in range(ROUNDS)
        ]
        rate = statistics.median(b.tokens / b.wall_s for b in bursts)
        first = statistics.median(s for b in bursts for s in b.first_token_s)
        table.add(streams, f"{rate:.0f}", f"{first * 1e3:.0f}")
    return table


def _first_token(cell: Cell) -> Table:
    prompt = _prompt(cell, 128)
    firsts = [
        asyncio.run(burst(cell.url, SMOLLM2, 1, prompt, 2)).first_token_s[0] for _ in range(15)
    ]
    table = Table(
        "First token",
        "POST /v1/completions with a prompt of 128 tokens, idle server, 15 times. Bar: 150 ms.",
        ("best ms", "median ms"),
    )
    table.add(f"{min(firsts) * 1e3:.0f}", f"{statistics.median(firsts) * 1e3:.0f}")
    return table


def _prompt(cell: Cell, tokens: int) -> str:
    """English that makes exactly so many tokens: " the" is one token."""
    prompt = "The" + " the" * (tokens - 1)
    usage = cell.complete(prompt, max_tokens=1).json()["usage"]
    assert usage["prompt_tokens"] == tokens, usage
    return prompt


def _memory(cell: Cell) -> Table:
    servers = json.loads(cell.sax("status", "--json").stdout)["servers"]
    planned = servers[0]["memory_used"]
    resident = cell.resident(MODEL_SERVER)
    table = Table(
        "Memory of the model server",
        "Resident after the load above, against the plan (weights, KV pool and workspace). "
        "Bar: weights + KV pool + 1.2 GB.",
        ("planned MiB", "resident MiB", "above the plan MiB"),
    )
    table.add(planned // _MIB, resident // _MIB, (resident - planned) // _MIB)
    return table


def _start_up() -> Table:
    table = Table(
        "Start-up",
        "`sax up` in a folder where the demo model is published until the first streamed token "
        "arrives over HTTP, 3 runs after one to warm up, and 3 with an empty cache of programs and "
        "weights each. Bars: 2 s, and 12 s with an empty cache. Beside them the least processor "
        "time of all processes until then, which a busy machine changes less.",
        ("cache", "best s", "median s", "CPU s"),
    )
    warm = [_first_start_token(COMPILE_CACHE) for _ in range(4)][1:]
    for name, starts in (("warm", warm), ("empty", [_cold_start() for _ in range(3)])):
        seconds, cpu = zip(*starts, strict=True)
        figures = min(seconds), statistics.median(seconds), min(cpu)
        table.add(name, *(f"{each:.1f}" for each in figures))
    return table


def _cold_start() -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as cache:
        return _first_start_token(Path(cache))


_FOLDER = ROOT / ".cache" / "bench-cell"


def _first_start_token(cache: Path) -> tuple[float, float]:
    """Return the seconds until the first token, and the processor's."""
    gateway, *others = free_ports(5)
    flags = ("--port", "--admin-port", "--model-port", "--status-port", "--metrics-port")
    words = [w for pair in zip(flags, map(str, (gateway, *others)), strict=True) for w in pair]
    command = [
        *(sys.executable, "-m", "sax.cli", "up", "--dir", str(_FOLDER)),
        *("--compile-cache", str(cache)),
        *words,
    ]
    # A client is made before: it would take its time from the servers.
    with httpx.Client(timeout=300, trust_env=False, verify=False) as client:
        began_s = time.monotonic()
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as up:
            try:
                _wait_for_token(client, gateway, began_s + 120)
                return time.monotonic() - began_s, sum(map(cpu_s, trees([up.pid])))
            finally:
                up.terminate()
                up.wait(60)


def _wait_for_token(client: httpx.Client, port: int, deadline_s: float) -> None:
    published = False
    while time.monotonic() < deadline_s:
        try:
            with socket.create_connection(("127.0.0.1", port)):
                pass
            published = published or _publish(client, port)
            if _has_token(client, port):
                return
        except (OSError, httpx.HTTPError):
            pass
        time.sleep(0.02)
    raise TimeoutError("no token came")


def _has_token(client: httpx.Client, port: int) -> bool:
    """Ask for one token, in a stream."""
    body = {"model": SMOLLM2, "prompt": "Once", "max_tokens": 1, "stream": True}
    with client.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body) as reply:
        lines = reply.iter_lines()
        return reply.is_success and any(line.startswith("data: {") for line in lines)


def _publish(client: httpx.Client, port: int) -> bool:
    """Publish the demo model unless an earlier run did."""
    body = {
        "model": SMOLLM2,
        "model_path": "llama",
        "checkpoint": str(demo_model()),
        "replicas": 1,
    }
    reply = client.post(f"http://127.0.0.1:{port}/publish", json=body)
    return reply.status_code in (200, 409)
