"""Engine decode throughput against the bare compiled step.

Both run in this process on the same runner, the same compiled programs and the same shapes, in
turns, so that a noisy machine slows both: the ratio is the figure, the absolutes are colour.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time

import jax
import numpy as np

from model_server.engine.column_layout import ColumnLayout
from model_server.engine.engine import Engine, SequenceUpdate
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_arrays import StepArrays
from model_server.engine.types import PageGrant, Row, SlotSampling, Step
from model_server.loading.loaded import Loaded
from tests.tools.bench.demo import GREEDY, random_prompt, request
from tests.tools.bench.memory_speed import read_gb_per_s
from tests.tools.bench.rounds import load
from tests.tools.bench.table import Table

BATCHES = (1, 8, 32)
PROMPT_TOKENS = 64
DECODE_STEPS = 96
ROUNDS = 11


def ramp(batch: int) -> int:
    """Steps until all prompts of a batch are in: how far the first sequence is ahead by then.

    At worst a block of 32 tokens a step, where a step with more would keep the first ones waiting.
    """
    return batch * PROMPT_TOKENS // 32


class Decoding:
    """Collects an engine's tokens and the time between the first full batch and the first end."""

    def __init__(self, loaded: Loaded, batch: int) -> None:
        self._batch = batch
        self._seen: dict[int, int] = {}
        self._began_s = 0.0
        self._tokens = 0
        self._rate = 0.0
        self._ended = 0
        self._done = threading.Event()
        self.engine = Engine(loaded.runner, self._deliver, loaded.step_times)

    def stop(self) -> None:
        """End the engine's thread but keep the runner for the next batch size."""
        self.engine.drain(60)

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        now = time.perf_counter()
        for update in updates:
            self._seen[update.sequence] = self._seen.get(update.sequence, 0) + 1
            self._ended += update.finish is not None
        if self._began_s:
            self._tokens += len(updates)
        elif len(self._seen) == self._batch:
            self._began_s = now
        if self._ended and not self._rate:
            self._rate = self._tokens / (now - self._began_s)
        if self._ended == self._batch:
            self._done.set()

    def tokens_per_second(self) -> float:
        self._seen, self._began_s, self._tokens, self._rate, self._ended = {}, 0.0, 0, 0.0, 0
        self._done.clear()
        rng = np.random.default_rng(0)
        for _ in range(self._batch):
            prompt = random_prompt(rng, PROMPT_TOKENS)
            self.engine.submit(request(prompt, DECODE_STEPS + ramp(self._batch)))
        self._done.wait()
        return self._rate


def bare_tokens_per_second(runner: ModelRunner, batch: int) -> float:
    """The compiled decode step in a Python loop: no scheduler, no threads, no reading back."""
    tokens = PROMPT_TOKENS + ramp(batch) + DECODE_STEPS
    per_sequence = -(-tokens // runner.limits.page_size)
    grants = tuple(
        PageGrant(slot, 0, tuple(range(1 + slot * per_sequence, 1 + (slot + 1) * per_sequence)))
        for slot in range(batch)
    )
    samplings = tuple(SlotSampling(slot, GREEDY) for slot in range(batch))

    def step(number: int) -> Step:
        position = PROMPT_TOKENS + ramp(batch) + number
        rows = tuple(Row(slot, slot, position, (), True) for slot in range(batch))
        return Step(number, rows, *((grants, samplings) if number == 0 else ()))

    bucket = runner.bucket(step(0))
    arrays, layout = StepArrays(runner.limits), ColumnLayout(bucket, runner.limits)
    vectors = [arrays.pack(step(number), layout)[0] for number in range(DECODE_STEPS)]
    began_s = time.perf_counter()
    for vector in vectors:
        outputs = runner.chosen(runner.forward(bucket, vector))
    jax.block_until_ready(outputs)
    return batch * DECODE_STEPS / (time.perf_counter() - began_s)


def run() -> Table:
    loaded = load(speculation="off")  # the bare step does not draft either
    runner = loaded.runner
    assert isinstance(runner, ModelRunner)
    speed = read_gb_per_s(os.cpu_count() or 1)
    reading_s = runner.weight_bytes / speed / 1e9
    table = Table(
        "Engine decode against the bare step",
        f"SmolLM2-135M-Instruct, bf16 weights, greedy, {PROMPT_TOKENS}-token prompts, "
        f"{DECODE_STEPS} steps; median of {ROUNDS} rounds, engine and bare loop in turns. "
        "The bare loop calls the same compiled step, arguments prepared, and reads nothing back. "
        f"Memory was read at {speed:.0f} GB/s just before: the weights alone take "
        f"{1e3 * reading_s:.1f} ms a step, which bounds batch 1 at {1 / reading_s:.0f} tokens/s.",
        ("batch", "engine tokens/s", "bare step tokens/s", "engine / bare (median of pairs)"),
    )
    for batch in BATCHES:
        decoding = Decoding(loaded, batch)
        engine_rates, bare_rates = [], []
        decoding.tokens_per_second()
        for _ in range(ROUNDS):
            # While the bare loop runs the engine rests: nothing is live, its thread waits.
            engine_rates.append(decoding.tokens_per_second())
            bare_rates.append(bare_tokens_per_second(runner, batch))
        # The machine drifts within seconds: each engine round is held against the bare rounds
        # on both sides of it.
        around = [(a + b) / 2 for a, b in itertools.pairwise(bare_rates)]
        ratios = [e / b for e, b in zip(engine_rates[1:], around, strict=True)]
        table.add(
            batch,
            f"{statistics.median(engine_rates):.0f}",
            f"{statistics.median(bare_rates):.0f}",
            f"{statistics.median(ratios):.3f}",
        )
        decoding.stop()
    return table
