"""The wait of a light user beside a heavy one, with the real engine and the demo model."""

from __future__ import annotations

import statistics
import threading
import time

import numpy as np

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, SequenceUpdate
from model_server.loading.loaded import Loaded
from tests.tools.bench.demo import COMPILED, load_demo, random_prompt, request
from tests.tools.bench.table import Table

SLOTS = 8
HEAVY_REQUESTS, HEAVY_PROMPT, HEAVY_ANSWER = 24, 128, 600
PROMPT_TOKENS, ANSWER_TOKENS = 64, 4
ROUNDS = 12
PAUSE_S = 0.5  # between two requests of the light user


class Users:
    """An engine, and the times at which its sequences got tokens."""

    def __init__(self, loaded: Loaded) -> None:
        self._changed = threading.Condition()
        self._ended: set[int] = set()
        self._first_s: dict[int, float] = {}
        self.step_times_s: list[float] = []
        self._rng = np.random.default_rng(0)
        self.engine = Engine(loaded.runner, self._deliver, loaded.step_times)

    def ask(self, account: str, prompt: int, answer: int) -> int:
        return self.engine.submit(
            request(random_prompt(self._rng, prompt), answer, account=account)
        )

    def first_token_s(self) -> float:
        """Time until the light user's first token; returns once its answer is complete."""
        began_s = time.perf_counter()
        sequence = self.ask("light", PROMPT_TOKENS, ANSWER_TOKENS)
        with self._changed:
            self._changed.wait_for(lambda: sequence in self._ended)
        return self._first_s[sequence] - began_s

    def wait_for_steps(self, count: int) -> None:
        with self._changed:
            goal = len(self.step_times_s) + count
            self._changed.wait_for(lambda: len(self.step_times_s) >= goal)

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        now = time.perf_counter()
        with self._changed:
            self.step_times_s.append(now)
            for update in updates:
                self._first_s.setdefault(update.sequence, now)
                if update.finish:
                    self._ended.add(update.sequence)
            self._changed.notify_all()


def run() -> Table:
    config = ModelServerConfig(slots=SLOTS, max_context=2048, jax_cache_dir=COMPILED)
    users = Users(load_demo(config))
    users.first_token_s()
    idle_s = statistics.median(users.first_token_s() for _ in range(ROUNDS))
    for _ in range(HEAVY_REQUESTS):
        users.ask("heavy", HEAVY_PROMPT, HEAVY_ANSWER)
    users.wait_for_steps(30)
    waits_s: list[float] = []
    for _ in range(ROUNDS):
        time.sleep(PAUSE_S)
        waits_s.append(users.first_token_s())
    gaps_s = np.diff(users.step_times_s[-200:])
    step_s = statistics.median(gaps_s.tolist())
    users.engine.close()
    beside_s = statistics.median(waits_s)
    table = Table(
        "A light user beside a heavy one",
        f"SmolLM2-135M-Instruct, {SLOTS} slots. The heavy account has {HEAVY_REQUESTS} requests of "
        f"{HEAVY_PROMPT} tokens for answers of {HEAVY_ANSWER}; the light one sends {PROMPT_TOKENS} "
        f"tokens, one request at a time, every {PAUSE_S} s. Medians of {ROUNDS}. The goal is a "
        "ratio of at most 2: (time to first token - one step) / time to first token when idle.",
        (
            "idle, ms",
            "step beside the heavy one, ms",
            "first token beside it, ms",
            "longest, ms",
            "ratio",
        ),
    )
    table.add(
        f"{1e3 * idle_s:.0f}",
        f"{1e3 * step_s:.0f}",
        f"{1e3 * beside_s:.0f}",
        f"{1e3 * max(waits_s):.0f}",
        f"{(beside_s - step_s) / idle_s:.2f}",
    )
    return table


if __name__ == "__main__":
    print(run().markdown())
