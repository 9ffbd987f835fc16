"""Harm at the edges: what arrives before anybody knows from whom."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc
import grpc.aio
import httpx

from tests.end_to_end.cell import Cell, resident
from tests.stress.row import MEMORY_NOISE, row

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


async def shout(address: str, path: str, message: bytes) -> str:
    """Send one message without a token; return the code of the answer."""

    async def once() -> AsyncIterator[bytes]:
        yield message

    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        try:
            await channel.stream_stream(path)(once(), timeout=30).read()
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


def strangers(addresses: list[str], paths: list[str], message: bytes) -> set[str]:
    """Send the message to each path of each server, three at a time."""

    async def all_of() -> set[str]:
        few = asyncio.Semaphore(3)

        async def one(address: str, path: str) -> str:
            async with few:
                return await shout(address, path, message)

        return set(await asyncio.gather(*(one(a, p) for a in addresses for p in paths)))

    return asyncio.run(all_of())


@row("gRPC messages of 400 MB from strangers, at all servers", tokens=True, longest_gap_s=1.0)
def huge_messages(cell: Cell) -> str:
    plan = cell.plan
    admin, model = [plan.admin_address], [f"127.0.0.1:{plan.model_port}"]
    message = bytes(HUGE)
    with watching(cell) as grown:
        codes = strangers(admin, ["/sax.Admin/Publish", "/sax.Admin/Join"], message)
        paths = ["/sax.server.lm.LMService/Generate", "/sax.tokens.TokenService/Stream"]
        paths += ["/sax.server.custom.CustomService/Custom", "/sax.prefill.PrefillService/Prefill"]
        codes |= strangers(model, paths, message)
        assert codes == {"UNAUTHENTICATED"}, codes
        probed = strangers([*admin, *model], ["/grpc.health.v1.Health/Check"], message)
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
    return slow(cell, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx: ", "408")


@row(f"{SLOW} clients that never finish their bodies")
def slow_bodies(cell: Cell) -> str:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"
    return slow(cell, head, "408")


@row("1 MB of headers, in one field or in many, 100 times")
def many_headers(cell: Cell) -> str:
    start = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
    one = start + b"x: " + b"v" * (1 << 20) + b"\r\n\r\n"
    many = start + b"".join(b"x%d: v\r\n" % i for i in range(1 << 17)) + b"\r\n"
    codes = {answered(connect(cell, head)) for _ in range(50) for head in (one, many)}
    assert codes == {"431"}, codes
    return "431, and the connection closed"
