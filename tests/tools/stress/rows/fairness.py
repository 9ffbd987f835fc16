"""One client asks for more than its share of the slots."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.end_to_end.cell import SMOLLM2, Cell
from tests.tools.stress.row import row

HEAVY, LIGHT = "127.0.0.2", "127.0.0.3"  # client addresses; the neighbour has a third
LONG = 24  # requests, for 8 slots
MOST_WAIT_S = 2.0  # for the light client's first token, on a busy machine


# A displaced answer is computed again beside the neighbour's stream, in steps full of prompt.
@row("24 long answers of one client at once, and short ones of another", longest_gap_s=1.0)
def long_answers(cell: Cell) -> str:
    idle_s = _first_token_s(cell)
    with _heavy(cell):
        _wait_until_busy(cell)
        waits_s = [_first_token_s(cell) for _ in range(8)]
    assert max(waits_s) <= MOST_WAIT_S, f"the short request waited {max(waits_s):.2f} s"
    median_s = sorted(waits_s)[len(waits_s) // 2]
    return (
        f"first token after {1e3 * idle_s:.0f} ms before, {1e3 * median_s:.0f} ms beside them "
        f"(at most {1e3 * max(waits_s):.0f} ms)"
    )


def _first_token_s(cell: Cell) -> float:
    body = _body("The capital of France is", 4) | {"stream": True}
    began_s = time.monotonic()
    try:
        with (
            _client(cell, LIGHT, 10) as http,
            http.stream("POST", "/v1/completions", json=body) as reply,
        ):
            assert reply.status_code == 200, reply.read().decode()[:200]
            next(line for line in reply.iter_lines() if line.startswith("data: {"))
    except httpx.ReadTimeout:
        raise AssertionError("the short request had no token after 10 s") from None
    return time.monotonic() - began_s


@contextmanager
def _heavy(cell: Cell) -> Iterator[None]:
    """Keep LONG answers going; at the end their connections are cut."""
    stop = threading.Event()

    def ask() -> None:
        with _client(cell, HEAVY, 120) as http:
            body = _body("Once upon a time", 900) | {"stream": True}
            with http.stream("POST", "/v1/completions", json=body) as reply:
                for _ in reply.iter_lines():
                    if stop.is_set():
                        return

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(LONG)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def _wait_until_busy(cell: Cell) -> None:
    """Until more requests wait than there are slots: the heavy client's, all of them."""
    cell.eventually(lambda: _waiting(cell) >= LONG // 2, "a queue", within_s=20)


def _waiting(cell: Cell) -> float:
    lines = httpx.get(f"http://127.0.0.1:{cell.plan.metrics_port}/metrics").text.splitlines()
    return next(
        float(line.split()[-1]) for line in lines if line.startswith("sax_requests_waiting{")
    )


def _client(cell: Cell, address: str, timeout_s: float) -> httpx.Client:
    return httpx.Client(
        base_url=cell.url,
        timeout=timeout_s,
        transport=httpx.HTTPTransport(local_address=address),
        headers=cell.headers,
    )


def _body(prompt: str, max_tokens: int) -> dict[str, object]:
    return {
        "model": SMOLLM2,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
