"""New weights under a running model: what a swap costs, and how long it stops streams."""

from __future__ import annotations

import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors.flax import load_file

from model_server.config import ModelServerConfig
from model_server.engine.engine import SequenceUpdate
from model_server.plan.checkpoint.convert import convert
from model_server.serving.sampler import Sampler
from sax.client.weights import write_safetensors
from sax.weights import Pausing
from tests.demo_model import demo_model
from tests.tools.bench.demo import COMPILED, random_prompt
from tests.tools.bench.table import Table

ROUNDS, WARMING = 9, 2
_KINDS = {"bfloat16": "null", "int8": '"int8"', "int4": '"int4"'}
STREAMS, ANSWER, SWAPS = 8, 400, 5
CONFIG = ModelServerConfig(slots=STREAMS, max_context=512, jax_cache_dir=COMPILED)

Arrays = Mapping[str, np.ndarray]


class TimedSampler(Sampler):
    """A sampler that notes when each of its sequences gets tokens."""

    times_s: dict[int, list[float]]

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        now_s = time.perf_counter()
        for update in updates:
            self.times_s.setdefault(update.sequence, []).append(now_s)
        super()._deliver(updates)


def run() -> list[Table]:
    with tempfile.TemporaryDirectory() as folder:
        bf16 = Path(folder) / "bf16"
        convert(str(demo_model()), str(bf16), dtype="bfloat16")
        stored = load_file(bf16 / "model.safetensors")
        arrays = {name: np.array(array) for name, array in stored.items()}
        return [swaps(bf16, arrays), gaps(bf16, arrays)]


def swaps(bf16: Path, arrays: Arrays) -> Table:
    size = sum(array.nbytes for array in arrays.values())
    table = Table(
        "A swap of weights against a copy of their bytes",
        f"SmolLM2-135M-Instruct, {size / 1e6:.0f} MB in bfloat16: all weights replaced between two "
        f"steps, and numpy's copy of the same arrays, in turns; medians of {ROUNDS}. CPU is the "
        "time of all threads. Bar for bfloat16: 1.2. Quantised weights are quantised again.",
        ("weights", "source", "copy ms", "swap ms", "swap / copy", "CPU: swap / copy"),
    )
    for kind, quantize in _KINDS.items():
        with (
            Sampler(str(bf16), overrides={"QUANTIZE": quantize}, config=CONFIG) as sampler,
            _sources(bf16, arrays) as sources,
        ):
            for name, source in sources.items():
                if kind == "bfloat16" or source is arrays:
                    table.add(kind, name, *_compared(sampler, source, arrays))
    return table


@contextmanager
def _sources(bf16: Path, arrays: Arrays) -> Iterator[dict[str, str | Arrays]]:
    shared = Path("/dev/shm") / f"sax-bench-{secrets.token_hex(6)}"
    try:
        write_safetensors(shared, arrays)
        file = str(bf16 / "model.safetensors")
        yield {"arrays": arrays, "shared memory": f"shm:{shared.name}", "file": file}
    finally:
        shared.unlink(missing_ok=True)


def _compared(sampler: Sampler, source: str | Arrays, arrays: Arrays) -> Sequence[str]:
    pairs = [
        (
            _timed(lambda: [each.copy() for each in arrays.values()]),
            _timed(lambda: sampler.update_weights(source)),
        )
        for _ in range(WARMING + ROUNDS)
    ][WARMING:]
    copied, swapped = (statistics.median(each[place][0] for each in pairs) for place in (0, 1))
    ratios = (statistics.median(swap[kind] / copy[kind] for copy, swap in pairs) for kind in (0, 1))
    return *(f"{1e3 * each:.0f}" for each in (copied, swapped)), *(f"{each:.2f}" for each in ratios)


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return its seconds, those to free what it made included, and those of the processor."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s


def gaps(bf16: Path, arrays: Arrays) -> Table:
    table = Table(
        "Streams beside a swap of weights",
        f"SmolLM2-135M-Instruct in bfloat16, {STREAMS} streams of {ANSWER} tokens; all weights are "
        f"replaced {SWAPS} times meanwhile, a swap after the other, and answers that have begun go "
        "on (`keep`). Milliseconds between two tokens of a stream. Bar: 250.",
        ("", "median", "longest", "answers whole"),
    )
    with TimedSampler(str(bf16), config=CONFIG) as sampler:
        for name, count in (("no swap", 0), (f"{SWAPS} swaps", SWAPS)):
            between, whole = _streamed(sampler, arrays, count)
            told = (f"{1e3 * each:.0f}" for each in (np.median(between), between.max()))
            table.add(name, *told, f"{whole} of {STREAMS}")
    return table


def _streamed(sampler: TimedSampler, arrays: Arrays, count: int) -> tuple[np.ndarray, int]:
    """Return the seconds between tokens, and how many answers have all their tokens."""
    rng = np.random.default_rng(0)
    sampler.times_s, answers = {}, []
    prompts = [random_prompt(rng, 32) for _ in range(STREAMS)]
    thread = threading.Thread(
        target=lambda: answers.extend(sampler.sample(prompts, max_tokens=ANSWER))
    )
    thread.start()
    time.sleep(1.0)  # the prompts
    for _ in range(count):
        sampler.update_weights(arrays, mode=Pausing.KEEP)
        assert thread.is_alive(), "the streams ended before the swaps: ask for longer answers"
    thread.join()
    between = np.concatenate([np.diff(each[1:]) for each in sampler.times_s.values()])
    return between, sum(len(each.tokens) == ANSWER for each in answers)
