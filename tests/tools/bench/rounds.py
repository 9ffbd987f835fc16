"""Decode throughput of full batches of one kind, for benchmarks that compare two kinds in turns."""

from __future__ import annotations

import functools
import json
import threading
import time

import numpy as np

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.types import Grammar, Sampling
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from sax.errors import SaxError
from sax.types import ModelSpec
from tests.demo_model import demo_model

PROMPT_TOKENS = 64
TOKENS = 96
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


@functools.cache
def load(dtype: str = "bfloat16", speculation: str | None = None) -> Loaded:
    """Load the demo model as a model server would, once per process."""
    spec = ModelSpec(
        model_id="/sax/bench/smollm2",
        model_path="llama",
        checkpoint=str(demo_model()),
        replicas=1,
        overrides={"DTYPE": json.dumps(dtype), "SPECULATION": json.dumps(speculation)},
    )
    loader = make_loader(ModelServerConfig(jax_cache_dir=".cache/compiled"))
    loaded = loader(spec, lambda _: None)
    assert isinstance(loaded, Loaded)
    return loaded


class Rounds:
    """One engine; each round submits a batch and measures from the first full step on."""

    def __init__(self, loaded: Loaded) -> None:
        # As a server has it: with the times of steps, by which it weighs forced tokens and guesses.
        self.engine = Engine(loaded.runner, self._deliver, loaded.step_times)
        self._times: list[float] = []  # of each delivery, and its tokens
        self._tokens: list[int] = []
        self._errors: list[SaxError] = []
        self._left = 0
        self._done = threading.Event()

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        self._times.append(time.perf_counter())
        self._tokens.append(len(updates))
        self._errors += [update.error for update in updates if update.error is not None]
        self._left -= sum(bool(update.finish or update.error) for update in updates)
        if self._left == 0:
            self._done.set()

    def tokens_per_second(
        self, batch: int, sampling: Sampling = GREEDY, grammar: Grammar | None = None
    ) -> float:
        self._times, self._tokens, self._left = [], [], batch
        self._done.clear()
        rng = np.random.default_rng(0)
        for _ in range(batch):
            self.engine.submit(
                EngineRequest(
                    prompt=tuple(rng.integers(3, 40000, PROMPT_TOKENS).tolist()),
                    sampling=sampling,
                    max_tokens=TOKENS + batch * PROMPT_TOKENS // 256,
                    stop_ids=frozenset(),
                    grammar=grammar,
                )
            )
        self._done.wait()
        if self._errors:
            raise self._errors[0]
        full = [place for place, count in enumerate(self._tokens) if count == batch]
        first, last = full[0], full[-1]
        return sum(self._tokens[first + 1 : last + 1]) / (self._times[last] - self._times[first])
