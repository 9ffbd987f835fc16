"""Decode throughput of full batches of one kind, for benchmarks that compare two kinds in turns."""

from __future__ import annotations

import functools
import threading
import time

import numpy as np

from model_server.engine.engine import Engine, SequenceUpdate
from model_server.engine.types import Grammar, Sampling
from model_server.loading.loaded import Loaded
from sax.errors import SaxError
from tests.tools.bench.demo import GREEDY, load_demo, random_prompt, request

PROMPT_TOKENS = 64
TOKENS = 96


@functools.cache
def load(dtype: str = "bfloat16", speculation: str | None = None) -> Loaded:
    """Load the demo model as a model server would, once per process."""
    return load_demo(DTYPE=dtype, SPECULATION=speculation)


class Rounds:
    """One engine; each round submits a batch and measures from the first full step on."""

    def __init__(self, loaded: Loaded) -> None:
        # As a server has it: with the times of steps, by which it weighs forced tokens and draft
        # tokens.
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
                request(
                    random_prompt(rng, PROMPT_TOKENS),
                    TOKENS + batch * PROMPT_TOKENS // 256,
                    sampling,
                    grammar=grammar,
                )
            )
        self._done.wait()
        if self._errors:
            raise self._errors[0]
        full = [place for place, count in enumerate(self._tokens) if count == batch]
        first, last = full[0], full[-1]
        return sum(self._tokens[first + 1 : last + 1]) / (self._times[last] - self._times[first])
