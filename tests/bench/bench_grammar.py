"""Decode throughput with a JSON schema on every row against plain greedy decoding.

Both run on the same engine and runner, in turns, so that a noisy machine slows both: the ratio is
the figure.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time

import numpy as np

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.types import Grammar, Sampling
from model_server.grammars.constraint import Constraint
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from sax.types import ModelSpec
from tests.bench.table import Table
from tests.demo_model import demo_model

BATCHES = (1, 32)
PROMPT_TOKENS = 64
TOKENS = 96
ROUNDS = 7
# Long enough that no answer ends before the measurement does.
SCHEMA = {
    "type": "array",
    "minItems": 60,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}


def load() -> Loaded:
    spec = ModelSpec(
        model_id="/sax/bench/smollm2",
        model_path="llama",
        checkpoint=str(demo_model()),
        replicas=1,
        overrides={"DTYPE": '"bfloat16"'},
    )
    loader = make_loader(ModelServerConfig(jax_cache_dir=".cache/compiled"))
    loaded = loader(spec, lambda _: None)
    assert isinstance(loaded, Loaded)
    return loaded


class Rounds:
    """One engine; each round submits a batch and measures from the first full step on."""

    def __init__(self, loaded: Loaded) -> None:
        self.engine = Engine(loaded.runner, self._deliver)
        self._times: list[float] = []  # of each delivery, and its tokens
        self._tokens: list[int] = []
        self._left = 0
        self._done = threading.Event()

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        self._times.append(time.perf_counter())
        self._tokens.append(len(updates))
        self._left -= sum(update.finish is not None for update in updates)
        if self._left == 0:
            self._done.set()

    def tokens_per_second(self, batch: int, grammar: Grammar | None) -> float:
        self._times, self._tokens, self._left = [], [], batch
        self._done.clear()
        rng = np.random.default_rng(0)
        for _ in range(batch):
            self.engine.submit(
                EngineRequest(
                    prompt=tuple(rng.integers(3, 40000, PROMPT_TOKENS).tolist()),
                    sampling=Sampling(0.0, 0, 1.0, seed=0, guided=grammar is not None),
                    max_tokens=TOKENS + batch * PROMPT_TOKENS // 256,
                    stop_ids=frozenset(),
                    grammar=grammar,
                )
            )
        self._done.wait()
        full = [place for place, count in enumerate(self._tokens) if count == batch]
        first, last = full[0], full[-1]
        return sum(self._tokens[first + 1 : last + 1]) / (self._times[last] - self._times[first])


def run() -> Table:
    loaded = load()
    assert loaded.grammars is not None
    grammar = asyncio.run(loaded.grammars.compile(Constraint("json_schema", json.dumps(SCHEMA))))
    rounds = Rounds(loaded)
    table = Table(
        "A JSON schema on every row against plain greedy decoding",
        f"SmolLM2-135M-Instruct, bf16 weights, {PROMPT_TOKENS}-token prompts, {TOKENS} tokens; "
        f"median of {ROUNDS} rounds, in turns on one engine. Bar at batch 32: 0.85.",
        ("batch", "plain tokens/s", "schema tokens/s", "schema / plain (median of pairs)"),
    )
    for batch in BATCHES:
        plain, guided = [], []
        rounds.tokens_per_second(batch, grammar)
        for _ in range(ROUNDS):
            plain.append(rounds.tokens_per_second(batch, None))
            guided.append(rounds.tokens_per_second(batch, grammar))
        ratios = [one / other for one, other in zip(guided, plain, strict=True)]
        table.add(
            batch,
            f"{statistics.median(plain):.0f}",
            f"{statistics.median(guided):.0f}",
            f"{statistics.median(ratios):.3f}",
        )
    rounds.engine.drain(60)
    return table
