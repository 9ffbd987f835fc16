"""Inter-token times of running streams while long prompts keep arriving, with the real engine."""

from __future__ import annotations

import threading
import time

import numpy as np

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, SequenceUpdate
from model_server.engine.step_times import StepTimes
from model_server.loading.loaded import Loaded
from tests.tools.bench.demo import COMPILED, load_demo, random_prompt, request
from tests.tools.bench.table import Table

CONTEXT = 4096
STREAMS, STREAM_PROMPT = 4, 32
PROMPT_TOKENS, ANSWER_TOKENS = 4000, 2
EVERY_S = 1.0
ROUNDS, IDLE_S, BUSY_S = 3, 8.0, 20.0


class Streams:
    """An engine with endless streams, and the times at which each got its tokens."""

    def __init__(self, loaded: Loaded, times: StepTimes | None) -> None:
        self._rng = np.random.default_rng(0)
        self._lock = threading.Lock()
        self._times_s: dict[int, list[float]] = {}
        self._asked: list[int] = []
        self.engine = Engine(loaded.runner, self._deliver, times)

    def ask(self, prompt: int, answer: int) -> int:
        self._asked.append(self.engine.submit(request(random_prompt(self._rng, prompt), answer)))
        return self._asked[-1]

    def stream(self, seconds: float, every_s: float | None) -> np.ndarray:
        """Run fresh streams for some time; return their inter-token times in seconds, f64[N].

        every_s: a long prompt arrives this often; None: never.
        """
        streams = [self.ask(STREAM_PROMPT, CONTEXT - STREAM_PROMPT) for _ in range(STREAMS)]
        with self._lock:
            self._times_s = {stream: [] for stream in streams}
        time.sleep(1.0)  # their own prompts
        prompts: list[int] = []
        ends_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < ends_s:
            if every_s is not None:
                prompts.append(self.ask(PROMPT_TOKENS, ANSWER_TOKENS))
            time.sleep(min(every_s or seconds, max(0.0, ends_s - now_s)))
        with self._lock:
            times, self._times_s = self._times_s, {}
        for sequence in (*streams, *prompts):
            self.engine.cancel(sequence)
        return np.concatenate([np.diff(each[1:]) for each in times.values()])

    def end(self) -> None:
        """Cancel everything and wait for it; the runner stays."""
        for sequence in self._asked:
            self.engine.cancel(sequence)
        self.engine.drain(60)

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        now = time.perf_counter()
        with self._lock:
            for update in updates:
                if update.sequence in self._times_s:
                    self._times_s[update.sequence].append(now)


def measure(loaded: Loaded, times: StepTimes | None) -> tuple[str, ...]:
    """Return the cells of a row: idle and busy intervals in turns, and prompt tokens per second."""
    streams = Streams(loaded, times)
    idle: list[np.ndarray] = []
    busy: list[np.ndarray] = []
    computed = 0
    for _ in range(ROUNDS):
        idle.append(streams.stream(IDLE_S, None))
        before = streams.engine.stats().prefill_tokens
        busy.append(streams.stream(BUSY_S, EVERY_S))
        computed += streams.engine.stats().prefill_tokens - before
    streams.end()
    alone, beside = np.concatenate(idle), np.concatenate(busy)
    median = [1e3 * np.median(each) for each in (alone, beside)]
    late = [1e3 * np.percentile(each, 95) for each in (alone, beside)]
    mean = [1e3 * np.mean(each) for each in (alone, beside)]
    cells = [f"{idle:.0f} -> {busy:.0f} ({busy / idle:.2f})" for idle, busy in (median, mean, late)]
    return *cells, f"{computed / (ROUNDS * BUSY_S):.0f}"


def run() -> Table:
    config = ModelServerConfig(max_context=CONTEXT, jax_cache_dir=COMPILED)
    # Greedy answers to random prompts repeat themselves: draft tokens would come in by fives, and
    # the time between two tokens would be none.
    loaded = load_demo(config, SPECULATION="off")
    table = Table(
        "Running streams while long prompts arrive",
        f"SmolLM2-135M-Instruct, {loaded.runner.limits.slots} slots, {STREAMS} streams. A prompt "
        f"of {PROMPT_TOKENS} tokens arrives every {EVERY_S:g} s, which is more than this machine "
        "computes. Milliseconds between two tokens of a stream, idle -> beside the prompts, and "
        "the ratio; the goal is a ratio of at most 2.",
        ("", "median", "mean", "95 of 100", "prompt tokens/s"),
    )
    table.add("without a pace", *measure(loaded, None))
    table.add("paced by measured steps", *measure(loaded, loaded.step_times))
    return table


if __name__ == "__main__":
    print(run().markdown())
