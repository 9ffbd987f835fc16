"""Time to the first token of a prompt whose beginning was computed before, with the demo model.

Run from the repository root: python -m tests.tools.bench.bench_prefix_cache
First turns and next ones alternate in one run, so that both meet the same machine.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, SequenceUpdate
from model_server.loading.loaded import Loaded
from tests.tools.bench.demo import COMPILED, load_demo, random_prompt, request
from tests.tools.bench.table import Table

SYSTEM, QUESTION, ANSWER = 1200, 24, 32  # tokens
ROUNDS = 7


class Caller:
    """An engine, asked one request at a time."""

    def __init__(self, loaded: Loaded) -> None:
        self._changed = threading.Condition()
        self._tokens: list[int] = []
        self._first_s = 0.0
        self._ended = False
        self.engine = Engine(loaded.runner, self._deliver, loaded.step_times)

    def ask(self, prompt: Sequence[int], answer: int = ANSWER) -> tuple[float, list[int]]:
        """Return the seconds to the first token, and the answer."""
        self._tokens, self._ended = [], False
        began_s = time.perf_counter()
        self.engine.submit(request(tuple(prompt), answer))
        with self._changed:
            self._changed.wait_for(lambda: self._ended)
        return self._first_s - began_s, self._tokens

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        with self._changed:
            for update in updates:
                if not self._tokens:
                    self._first_s = time.perf_counter()
                assert update.result.token is not None
                self._tokens.append(update.result.token)
                self._ended = self._ended or update.finish is not None
            self._changed.notify_all()


def chats(caller: Caller, words: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Yield the times of a chat's first turn and of its second one."""
    for _ in range(ROUNDS):
        prompt = random_prompt(words, SYSTEM + QUESTION)
        first_s, answer = caller.ask(prompt)
        second_s, _ = caller.ask([*prompt, *answer, *random_prompt(words, QUESTION)])
        yield first_s, second_s


def questions(caller: Caller, words: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Yield the times of a question after a new system prompt and of another after the same."""
    for _ in range(ROUNDS):
        system = random_prompt(words, SYSTEM)
        first_s, _ = caller.ask([*system, *random_prompt(words, QUESTION)], 1)
        second_s, _ = caller.ask([*system, *random_prompt(words, QUESTION)], 1)
        yield first_s, second_s


def run() -> Table:
    config = ModelServerConfig(slots=8, max_context=2048, jax_cache_dir=COMPILED)
    caller, words = Caller(load_demo(config)), np.random.default_rng(0)
    caller.ask(random_prompt(words, 64))
    table = Table(
        "Prompts that begin alike",
        f"SmolLM2-135M-Instruct, one request at a time. A chat has a system prompt of {SYSTEM} "
        f"tokens, questions of {QUESTION} and answers of {ANSWER}. Medians of {ROUNDS}; the first "
        "and the second of each pair alternate in one run. The goal is a ratio of at least 5.",
        ("", "first, ms to first token", "second, ms", "ratio"),
    )
    rows = {
        "second turn of a chat": chats(caller, words),
        "another question after the same system prompt": questions(caller, words),
    }
    for name, pairs in rows.items():
        first_s, second_s = map(statistics.median, zip(*pairs, strict=True))
        table.add(
            name, f"{1e3 * first_s:.0f}", f"{1e3 * second_s:.0f}", f"{first_s / second_s:.1f}"
        )
    caller.engine.close()
    return table


if __name__ == "__main__":
    print(run().markdown())
