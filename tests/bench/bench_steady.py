"""Inter-token times of running streams while long prompts keep arriving, with the real engine."""

from __future__ import annotations

import threading
import time

import numpy as np

from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded

SLOTS, CONTEXT = 8, 4096
STREAMS, STREAM_PROMPT = 4, 32
PROMPT_TOKENS, ANSWER_TOKENS = 4000, 2
EVERY_S = 1.0
IDLE_S, BUSY_S = 10.0, 30.0
_GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


class Streams:
    """An engine with endless streams, and the times at which each got its tokens."""

    def __init__(self, loaded: Loaded) -> None:
        self._rng = np.random.default_rng(0)
        self._lock = threading.Lock()
        self._times_s: dict[int, list[float]] = {}
        self.prompts_done = 0
        self.engine = Engine(loaded.runner, self._deliver)

    def ask(self, prompt: int, answer: int) -> int:
        tokens = tuple(self._rng.integers(3, 40000, prompt).tolist())
        return self.engine.submit(
            EngineRequest(prompt=tokens, sampling=_GREEDY, max_tokens=answer, stop_ids=frozenset())
        )

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

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        now = time.perf_counter()
        with self._lock:
            for update in updates:
                if update.sequence in self._times_s:
                    self._times_s[update.sequence].append(now)
                elif update.finish == "length":
                    self.prompts_done += 1
