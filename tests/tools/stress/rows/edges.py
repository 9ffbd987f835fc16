"""Harm at the edges: what arrives before anybody knows from whom."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.end_to_end.cell import Cell
from tests.processes import resident
from tests.tools.stress.row import MEMORY_NOISE, row

HUGE = 400 << 20
SLOW = 200  # clients


@contextmanager
def watching(cell: Cell) -> Iterator[dict[str, int]]:
    """Note by how much each process grew at most, in bytes."""
    pids, over = cell.pids(), threading.Event()
    before = {name: resident(pid) for name, pid in pids.items()}
    grown = dict.fromkeys(pids, 0)

    def watch() -> None:
        while not over.wait(0.005):
            for name, pid in pids.items():
                grown[name] = max(grown[name], resident(pid) - before[name])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield grown
    finally:
        over.set()
        thread.join()


def strangers(addresses: list[str], *paths: str) -> set[str]:
    """Send a message without a token to each path; return the codes of the answers.

    From a process of its own: to write 400 MB would hold up the neighbour in this one.
    """
    words = [
        sys.executable,
        "-m",
        "tests.tools.stress.stranger",
        str(HUGE),
        ",".join(addresses),
        *paths,
    ]
    return set(subprocess.check_output(words, text=True).split())


@row("gRPC messages of 400 MB from strangers, at all servers", tokens=True, longest_gap_s=1.0)
def huge_messages(cell: Cell) -> str:
    plan = cell.plan
    admin, model = plan.admin_address, f"127.0.0.1:{plan.model_port}"
    with watching(cell) as grown:
        codes = strangers([admin], "/sax.Admin/Publish")
        codes |= strangers([model], "/sax.server.lm.LMService/Generate")
        codes |= strangers([model], "/sax.tokens.TokenService/Stream")
        assert codes == {"UNAUTHENTICATED"}, codes
        probed = strangers([admin, model], "/grpc.health.v1.Health/Check")
    assert probed == {"RESOURCE_EXHAUSTED"}, probed
    most = max(grown.values())
    assert most < MEMORY_NOISE, {name: size >> 20 for name, size in grown.items()}
    return f"refused unread; the largest growth was {most >> 20} MiB"


def connect(cell: Cell, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", cell.plan.gateway_port), timeout=60)
    connection.sendall(data)
    return connection


def answered(connection: socket.socket) -> str:
    """Read to the end; return the status code, "" when there is none."""
    with connection:
        data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return data.split(b" ", 2)[1].decode() if data else ""


def slow(cell: Cell, head: bytes, wanted: str) -> str:
    """Hold many connections that never finish; others are served meanwhile."""
    began_s = time.monotonic()
    held = [connect(cell, head) for _ in range(SLOW)]
    asked_s = time.monotonic()
    assert httpx.get(f"{cell.url}/healthz", trust_env=False, timeout=5).status_code == 200
    served_s = time.monotonic() - asked_s
    codes = {answered(connection) for connection in held}
    assert codes == {wanted}, codes
    took_s = time.monotonic() - began_s
    assert took_s < 20, took_s
    return f"{wanted} after {took_s:.1f} s; a new connection was served in {1e3 * served_s:.0f} ms"


@row(f"{SLOW} clients that never finish their headers")
def slow_headers(cell: Cell) -> str:
    return slow(cell, b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx: ", "408")


@row(f"{SLOW} clients that never finish their bodies")
def slow_bodies(cell: Cell) -> str:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{"
    return slow(cell, head, "408")


@row("1 MB of headers, in one field or in many, 100 times")
def many_headers(cell: Cell) -> str:
    start = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
    one = start + b"x: " + b"v" * (1 << 20) + b"\r\n\r\n"
    many = start + b"".join(b"x%d: v\r\n" % i for i in range(1 << 17)) + b"\r\n"
    sent = [connect(cell, head) for _ in range(50) for head in (one, many)]
    codes = {answered(connection) for connection in sent}
    assert codes == {"431"}, codes
    return "431, and the connection closed"
