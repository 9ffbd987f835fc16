"""Chat templates that never end."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.end_to_end.cell import SMOLLM2, Cell
from tests.model_server.checkpoints.tiny_folder import write_json, write_tiny
from tests.tools.stress.neighbour import Neighbour
from tests.tools.stress.row import row

BOMB = "/sax/test/bomb"
BOMBS = {
    "round": "{{ one | round(-100000000) }}",
    "round up": "{{ (one * 5.5) | round(100000000, 'ceil') }}",
    "slice": "{{ messages | slice(one * 1000000000) | list }}",
    "in": "{% set x = range(99999) | list %}{% for i in range(60000) %}{{ -1 in x }}{% endfor %}",
    "list": "{% for i in range(90000) %}{{ range(99999) | list | length }}{% endfor %}",
    "replace": "{{ ('x' * 100000 * one) | replace('x', 'x' * 100000) }}",
    "join": "{{ ([1] * 1000000 * one) | join('x' * 100000) }}",
    "batch": "{{ messages | batch(one * 1000000000, 'x') | list }}",
    "product": "{{ 'x' * (10 ** 9 * one) }}",
    "format": "{{ '%999999999d' | format(one) }}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(99) }}",
}
LONGEST_GAP_S = 0.25  # of the neighbour's stream
SECONDS = 15.0  # until each chat of the bomb has its answer


def _ask(cell: Cell, model: str, content: str) -> tuple[httpx.Response, float]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 1,
    }
    began_s = time.monotonic()
    reply = httpx.post(
        f"{cell.url}/v1/chat/completions", json=body, timeout=60, headers=cell.headers
    )
    return reply, time.monotonic() - began_s


@contextmanager
def _published(cell: Cell, template: str) -> Iterator[None]:
    """A tiny model with this template."""
    with tempfile.TemporaryDirectory() as room:
        folder = write_tiny(Path(room) / "bomb")
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        write_json(folder / "tokenizer_config.json", settings | {"chat_template": template})
        cell.publish(str(folder), model=BOMB, model_path="auto")
        try:
            yield
        finally:
            cell.sax("unpublish", BOMB)


# The neighbour comes once the model is loaded: a load, hostile or not, compiles.
@row("chat templates that never end, all at once", neighbour=False)
def endless_templates(cell: Cell) -> str:
    template = "{% set one = messages | length %}" + "".join(
        f"{{% if messages[0].content == '{name}' %}}{source}{{% endif %}}"
        for name, source in BOMBS.items()
    )
    with (
        _published(cell, template),
        Neighbour(cell) as neighbour,
        ThreadPoolExecutor(len(BOMBS)) as pool,
    ):
        bombs = [pool.submit(_ask, cell, BOMB, name) for name in BOMBS]
        time.sleep(0.5)
        good, waited_s = _ask(cell, SMOLLM2, "Hello")
        replies = [bomb.result() for bomb in bombs]
    assert good.status_code == 200, good.text[:300]
    for reply, _ in replies:
        assert reply.status_code in (400, 503), reply.text[:300]
        assert "template" in reply.text, reply.text[:300]
    longest_s = max(took_s for _, took_s in replies)
    assert longest_s < SECONDS, f"a bomb was answered after {longest_s:.1f} s"
    assert not neighbour.errors, neighbour.errors[:3]
    gap_s = neighbour.longest_gap_s
    assert gap_s <= LONGEST_GAP_S, f"the neighbour's stream paused {gap_s:.2f} s"
    return (
        f"400 or 503 within {longest_s:.1f} s; a chat of another model in {waited_s:.2f} s; "
        f"longest gap of a neighbour {1e3 * gap_s:.0f} ms"
    )
