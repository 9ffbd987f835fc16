"""A model server over two islands: real processes, real weights, an island killed in mid-stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sax.cli.local.cell_plan import PROXY, worker_name
from tests.end_to_end.cell import MODEL_SERVER, SMOLLM2, Cell, local_plan
from tests.end_to_end.conftest import FLAGS

pytestmark = pytest.mark.nightly

STREAMS = 4
TOKENS = 100
# In bfloat16 a token that is computed again, in another batch, may round to another.
EXACT = {"DTYPE": "float32", "KV_CACHE_DTYPE": "float32"}


@pytest.fixture(scope="module")
def islands(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    plan = local_plan(tmp_path_factory.mktemp("islands"), *FLAGS, islands=2, devices_per_island=2)
    with Cell(plan) as cell:
        cell.publish(str(gguf), overrides=EXACT)
        yield cell


class Stream:
    """A greedy stream on a thread of its own."""

    def __init__(self, cell: Cell, number: int) -> None:
        self.text = ""
        self.begun = threading.Event()
        self._url = f"{cell.url}/v1/completions"
        self._body: dict[str, Any] = {
            "model": SMOLLM2,
            "prompt": f"{number}. The history of the lighthouse",
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "logprobs": 2,
        }
        self.pieces: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with httpx.stream(
            "POST", self._url, json=self._body, timeout=120, trust_env=False
        ) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    choice = json.loads(line.removeprefix("data: "))["choices"][0]
                    self.pieces += choice["logprobs"]["tokens"]
                    self.text += choice["text"]
                    self.begun.set()

    def end(self) -> tuple[str, list[str]]:
        self._thread.join()
        return self.text, self.pieces


def streamed(cell: Cell, killed: str = "") -> list[tuple[str, list[str]]]:
    """Texts and tokens of streams, in whose midst a process is killed and started again."""
    streams = [Stream(cell, number) for number in range(STREAMS)]
    for each in streams:
        assert each.begun.wait(60)
    if killed:
        cell.kill(killed)
        cell.start(killed)
    return [each.end() for each in streams]


@pytest.mark.parametrize("island", [0, 1])
def test_streams_go_on_when_an_island_is_killed_and_it_comes_back(
    islands: Cell, island: int
) -> None:
    pid = islands.pid(MODEL_SERVER)
    calm = streamed(islands)
    assert [len(tokens) for _, tokens in calm] == [TOKENS] * STREAMS
    assert streamed(islands, worker_name(island)) == calm
    islands.eventually(lambda: "islands lost" not in islands.sax("status").stdout, "it is back")
    assert islands.pid(MODEL_SERVER) == pid
    assert islands.alive(MODEL_SERVER)
    assert streamed(islands) == calm


def test_a_proxy_server_that_dies_is_connected_to_again_by_the_same_process(
    islands: Cell,
) -> None:
    before = islands.text("The sky is")
    pid = islands.pid(MODEL_SERVER)
    islands.kill(PROXY)
    islands.eventually(lambda: "islands lost" in islands.sax("status").stdout, "it is noticed")
    islands.start(PROXY)
    islands.eventually(lambda: "islands lost" not in islands.sax("status").stdout, "all are back")
    assert islands.text("The sky is") == before
    assert islands.pid(MODEL_SERVER) == pid
    assert islands.alive(MODEL_SERVER)
