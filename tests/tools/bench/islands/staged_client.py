"""Decodes with a model of random weights on islands, as told line by line; a process of its own.

python -m tests.tools.bench.islands.staged_client OVERRIDES SLOTS ISLANDS

Prints "ready" once the model is loaded; then each line "STREAMS TOKENS" makes that many streams,
and prints the tokens per second of their middle half.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from model_server.config import ModelServerConfig
from model_server.engine.engine import EngineRequest, SequenceUpdate
from model_server.engine.types import Sampling
from model_server.islands import BACKEND
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from model_server.serving.lm_servable import LmServable
from sax.types import ModelSpec

CLASS = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


async def rate(servable: LmServable, streams: int, tokens: int) -> float:
    times: list[float] = []  # of tokens
    all_there = asyncio.Event()

    def receive(update: SequenceUpdate) -> None:
        assert update.error is None, update.error
        times.append(time.perf_counter())
        if len(times) == streams * tokens:
            all_there.set()

    for stream in range(streams):
        prompt = tuple(1 + (stream + place) % 90 for place in range(4))
        servable.submit(
            EngineRequest(prompt=prompt, sampling=GREEDY, max_tokens=tokens, stop_ids=frozenset()),
            receive,
        )
    await all_there.wait()
    begins, ends = len(times) // 4, 3 * len(times) // 4
    return (ends - begins) / (times[ends] - times[begins])


async def serve(loaded: Loaded) -> None:
    servable = LmServable("/sax/test/staged", loaded)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(await rate(servable, *map(int, line.split())), flush=True)


def main() -> None:
    overrides, slots, islands = sys.argv[1:]
    BACKEND.register(os.environ)
    BACKEND.chosen = tuple(map(int, islands.split(",")))
    config = ModelServerConfig(
        slots=int(slots), max_context=128, page_size=16, stream_interval_seconds=0
    )
    spec = ModelSpec(
        model_id="/sax/test/staged",
        model_path=CLASS,
        checkpoint="None",
        replicas=1,
        overrides=json.loads(overrides),
    )
    loaded = make_loader(config)(spec, lambda _: None)
    assert isinstance(loaded, Loaded)
    asyncio.run(serve(loaded))
    os._exit(0)  # the client of a proxy server aborts a process that ends while connected


if __name__ == "__main__":
    main()
