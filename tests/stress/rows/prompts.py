"""Prompts that cost more to read than to answer."""

from __future__ import annotations

import time

import httpx

from tests.end_to_end.cell import SMOLLM2, Cell
from tests.stress.row import row

BODY = 7_800_000  # bytes, within the gateway's default limit


@row("a prompt of 7.8 MB, five at once")
def long_prompts(cell: Cell) -> str:
    body = {"model": SMOLLM2, "prompt": "once upon a time " * (BODY // 17), "max_tokens": 4}
    began_s = time.monotonic()
    replies = [httpx.post(f"{cell.url}/v1/completions", json=body, timeout=60) for _ in range(5)]
    codes = {reply.json()["error"]["code"] for reply in replies}
    assert {reply.status_code for reply in replies} == {400}, replies[0].text[:300]
    assert codes == {"context_length_exceeded"}
    return f"400 context_length_exceeded in {(time.monotonic() - began_s) / 5:.2f} s each"
