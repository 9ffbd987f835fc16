"""Prints the answers of small models, loaded as a model server does; a process of its own.

jax's platform is chosen before it starts, by the environment: `python -m
tests.model_server.islands.answers BYTES PREFILL_ISLANDS FOLDER [OVERRIDES] ...`. Prints one line of
JSON per model: for each request its tokens and log-probabilities, and how often sequences were
preempted, pages shared and moved between islands.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from model_server.config import ModelServerConfig
from model_server.engine.engine import EngineRequest, SequenceUpdate
from model_server.engine.types import Sampling
from model_server.islands import BACKEND, is_proxied
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from model_server.serving.lm_servable import LmServable
from sax.types import ModelSpec

PAGE = 8
SIZES = (3, 9, 17, 24)
LONG = (260, 9, 300, 271)  # those over 256 are computed on prompt islands
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0, logprobs=3)
SAMPLED = Sampling(temperature=1.0, top_k=40, top_p=0.9, seed=7)
PENALISED = Sampling(
    temperature=0.8, top_k=0, top_p=1.0, seed=3, repetition_penalty=1.3, logit_bias=((5, 2.0),)
)


def asked(context: int) -> list[EngineRequest]:
    sizes = LONG if context > max(LONG) else SIZES
    prompts = [tuple(4 + token % 40 for token in range(size)) for size in sizes]
    every = [
        EngineRequest(prompt=prompt, sampling=each, max_tokens=24, stop_ids=frozenset())
        for each in (GREEDY, SAMPLED, PENALISED)
        for prompt in prompts
    ]
    scored = EngineRequest(
        prompt=prompts[-1], sampling=GREEDY, max_tokens=0, stop_ids=frozenset(), score_from=1
    )
    return [*every, scored]


class Answers:
    """Collects what requests are answered."""

    def __init__(self, servable: LmServable) -> None:
        self._servable = servable

    async def of(self, request: EngineRequest) -> dict[str, Any]:
        updates: asyncio.Queue[SequenceUpdate] = asyncio.Queue()
        self._servable.submit(request, updates.put_nowait)
        tokens: list[int] = []
        numbers: list[float] = []
        while True:
            update = await updates.get()
            assert update.error is None, update.error
            result = update.result
            if result.token is not None:
                tokens.append(result.token)
                numbers += [result.logprob, *(each for _, each in result.top)]
            numbers += result.target_logprobs
            if update.finish is not None:
                return {"tokens": tokens, "numbers": numbers}


async def answers_of(loaded: Loaded) -> dict[str, Any]:
    servable = LmServable("/sax/test/small", loaded)
    answers = Answers(servable)
    requests = asked(loaded.runner.limits.max_context)
    first = await asyncio.gather(*map(answers.of, requests))
    again = [await answers.of(request) for request in requests]  # alone, with pages kept
    stats = servable.stats()
    moves = loaded.islands and loaded.islands.moves
    await servable.close(5)
    return {
        "together": first,
        "alone": again,
        "preemptions": stats.preemptions,
        "prefix_hits": stats.prefix_hits,
        "moved": moves.moved if moves else 0,
    }


def main() -> None:
    if is_proxied():
        BACKEND.register(os.environ)
    _, pool, prefill, *models = sys.argv
    islands = tuple(map(int, filter(None, prefill.split(","))))
    config = ModelServerConfig(
        slots=4, page_size=PAGE, kv_cache_bytes=int(pool), prefill_islands=islands
    )
    loader = make_loader(config)
    for told in models:
        folder, _, overrides = told.partition(" ")
        spec = ModelSpec(
            model_id="/sax/test/small",
            model_path="auto",
            checkpoint=folder,
            replicas=1,
            overrides=json.loads(overrides or "{}"),
        )
        loaded = loader(spec, lambda _: None)
        assert isinstance(loaded, Loaded)
        sys.stdout.write(json.dumps(asyncio.run(answers_of(loaded))) + "\n")
        sys.stdout.flush()
    os._exit(0)  # the client of a proxy server aborts a process that ends while connected


if __name__ == "__main__":
    main()
