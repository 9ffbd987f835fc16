"""Decodes with a model on jax's devices, as told line by line; a process of its own.

python -m tests.model_server.islands.decode_client CHECKPOINT [OVERRIDES [STEPS]]

STEPS: of one launch. jax's platform is chosen before, by the environment. Prints "ready" once the
model is loaded; then a line "BATCH TOKENS" makes that many streams of that many tokens each, and
prints a `Decoded`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import msgspec

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.types import Sampling
from model_server.islands import BACKEND, is_proxied
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from model_server.process.heap import keep_freed_memory
from sax.types import ModelSpec

GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
PROMPT = tuple(range(4, 20))
# A draft token would bring several tokens in one step.
PLAIN = {"SPECULATION": '"off"'}


class Decoded(msgspec.Struct):
    """Answers, and what a step of the whole batch took while all streams ran."""

    tokens: list[list[int]]
    steps: int
    step_ms: float
    cpu_ms: float  # processor time of this process, per step


class Decoder:
    """An engine, and the streams of one round."""

    def __init__(self, loaded: Loaded) -> None:
        self._engine = Engine(loaded.runner, self._deliver, loaded.step_times)
        self._tokens: dict[int, list[int]] = {}
        # After full steps: seconds, CPU seconds, and steps so far.
        self._times: list[tuple[float, float, int]] = []
        self._batch = self._left = 0
        self._done = threading.Event()

    def decode(self, batch: int, tokens: int) -> Decoded:
        self._tokens, self._times = {}, []
        self._batch = self._left = batch
        self._done.clear()
        for _ in range(batch):
            self._engine.submit(
                EngineRequest(
                    prompt=PROMPT, sampling=GREEDY, max_tokens=tokens, stop_ids=frozenset()
                )
            )
        self._done.wait()
        (began_s, cpu_s, first), (ended_s, ended_cpu_s, last) = self._times[0], self._times[-1]
        steps = last - first
        return Decoded(
            list(self._tokens.values()),
            steps,
            1e3 * (ended_s - began_s) / steps,
            1e3 * (ended_cpu_s - cpu_s) / steps,
        )

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        for update in updates:
            if update.error is not None:
                sys.stderr.write(f"{update.error}\n")
                os._exit(1)  # nobody else would end the wait
            if update.result.token is not None:
                self._tokens.setdefault(update.sequence, []).append(update.result.token)
            self._left -= update.finish is not None
        if len(updates) % self._batch == 0 and all(
            update.result.token is not None for update in updates
        ):
            steps = sum(map(len, self._tokens.values())) // self._batch
            self._times.append((time.perf_counter(), time.process_time(), steps))
        if not self._left:
            self._done.set()


def load(checkpoint: str, overrides: dict[str, str], steps_per_launch: int | None) -> Loaded:
    if is_proxied():
        BACKEND.register(os.environ)
    spec = ModelSpec(
        model_id="/sax/test/decoded",
        model_path="auto",
        checkpoint=checkpoint,
        replicas=1,
        overrides=overrides | PLAIN,
    )
    config = ModelServerConfig(
        slots=8,
        max_context=1024,
        jax_cache_dir=".cache/compiled",
        steps_per_launch=steps_per_launch,
    )
    loaded = make_loader(config)(spec, lambda _: None)
    assert isinstance(loaded, Loaded)
    return loaded


def main() -> None:
    keep_freed_memory()
    overrides = json.loads(sys.argv[2]) if sys.argv[2:] else {}
    steps_per_launch = int(sys.argv[3]) if sys.argv[3:] else None
    decoder = Decoder(load(sys.argv[1], overrides, steps_per_launch))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        decoded = decoder.decode(*map(int, line.split()))
        sys.stdout.buffer.write(msgspec.json.encode(decoded) + b"\n")
        sys.stdout.flush()
    os._exit(0)  # the client of a proxy server aborts a process that ends while connected


if __name__ == "__main__":
    main()
