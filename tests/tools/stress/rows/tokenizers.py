"""A tokenizer of a few kilobytes that would encode for hours."""

from __future__ import annotations

import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.end_to_end.cell import Cell
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.tools.stress.neighbour import Neighbour
from tests.tools.stress.row import row

MODEL = "/sax/test/strange"
SECONDS = 15.0
LONGEST_GAP_S = 0.25
PATTERN = r"(a|a|ab?)*c|(a+)+(h)|((a*)*)*x"


# The neighbour comes once the model is loaded: a load, hostile or not, compiles.
@row("a tokenizer whose pattern never ends, four prompts at once", neighbour=False)
def endless_pattern(cell: Cell) -> str:
    with tempfile.TemporaryDirectory() as room:
        folder = write_tiny(Path(room) / "strange")
        path = folder / "tokenizer.json"
        split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated"}
        parts = json.loads(path.read_text()) | {"pre_tokenizer": split | {"invert": False}}
        path.write_text(json.dumps(parts), encoding="utf-8")
        cell.publish(str(folder), model=MODEL, model_path="auto")
        try:
            with Neighbour(cell) as neighbour, ThreadPoolExecutor(4) as pool:
                replies = list(pool.map(lambda n: _ask(cell, "a" * (60 + n)), range(4)))
        finally:
            cell.sax("unpublish", MODEL)
    for reply, took_s in replies:
        assert reply.status_code in (400, 503), reply.text[:300]
        assert took_s < SECONDS, f"a prompt was answered after {took_s:.1f} s"
    assert not neighbour.errors, neighbour.errors[:3]
    gap_s = neighbour.longest_gap_s
    assert gap_s <= LONGEST_GAP_S, f"the neighbour's stream paused {gap_s:.2f} s"
    longest_s = max(took_s for _, took_s in replies)
    return f"400 or 503 within {longest_s:.1f} s; longest gap of a neighbour {1e3 * gap_s:.0f} ms"


def _ask(cell: Cell, prompt: str) -> tuple[httpx.Response, float]:
    began_s = time.monotonic()
    reply = httpx.post(
        f"{cell.url}/v1/completions",
        json={"model": MODEL, "prompt": prompt, "max_tokens": 1},
        timeout=60,
        headers=cell.headers,
    )
    return reply, time.monotonic() - began_s
