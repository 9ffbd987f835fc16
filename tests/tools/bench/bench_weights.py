"""New weights under a running model: what a swap costs, and how long it stops streams."""

from __future__ import annotations

import json
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.flax import load_file

from model_server.config import ModelServerConfig
from model_server.engine.engine import SequenceUpdate
from model_server.plan.checkpoint.convert import convert
from model_server.serving.sampler import Sampler
from model_server.sharing.freeing import give_back_unused
from sax.client.weights import write_safetensors
from sax.weights import Pausing
from tests.demo_model import demo_model
from tests.tools.bench.demo import COMPILED, random_prompt
from tests.tools.bench.table import Table

ROUNDS, WARMING = 9, 2
_KINDS = {"bfloat16": "null", "int8": '"int8"', "int4": '"int4"'}
STREAMS, ANSWER, SWAPS, BAR_MS = 8, 32, 20, 250
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
        with _sources(bf16, arrays) as sources:
            return [swaps(bf16, arrays, sources), gaps(bf16, sources)]


Sources = Mapping[str, str | Arrays]


def swaps(bf16: Path, arrays: Arrays, sources: Sources) -> Table:
    size = sum(array.nbytes for array in arrays.values())
    table = Table(
        "A swap of weights against a copy of their bytes",
        f"SmolLM2-135M-Instruct, {size / 1e6:.0f} MB in bfloat16: all weights replaced between two "
        "steps; numpy's copy of the same arrays; and the source's bytes read into arrays (of "
        "arrays the same copy). All three are in turns, copies into memory new from the system, "
        "which clears it, swaps into that of the weights before the last (the first two, which "
        "have none, do not count); `over` is the copy into arrays that are there. Medians of "
        f"{ROUNDS}, of the "
        "clock the shortest, and ratios of the CPU's medians and of its shortest times. CPU is "
        "the time of all threads, freeing included. Swaps are done on a thread of low priority, "
        "so that the clock shows the machine's other work, too. Bar for bfloat16: 1.2. Quantised "
        "weights are quantised again.",
        (
            *("weights", "source", "CPU ms: over", "copy", "read", "swap"),
            *("swap / copy: median", "shortest", "swap / read: median", "shortest"),
            *("clock ms: copy", "read", "swap"),
        ),
    )
    for kind, quantize in _KINDS.items():
        with Sampler(str(bf16), overrides={"QUANTIZE": quantize}, config=CONFIG) as sampler:
            for name, source in sources.items():
                if kind == "bfloat16" or source is arrays:
                    table.add(kind, name, *_compared(sampler, source, arrays))
    return table


@contextmanager
def _sources(bf16: Path, arrays: Arrays) -> Iterator[Sources]:
    shared = Path("/dev/shm") / f"sax-bench-{secrets.token_hex(6)}"
    orbax = bf16.parent / "orbax"
    convert(str(bf16), str(orbax), to="orbax")
    try:
        write_safetensors(shared, arrays)
        file = str(bf16 / "model.safetensors")
        shm = f"shm:{shared.name}"
        yield {"arrays": arrays, "shared memory": shm, "file": file, "Orbax folder": str(orbax)}
    finally:
        shared.unlink(missing_ok=True)


class _Taken(NamedTuple):
    """Seconds that something took."""

    clock: float
    processor: float  # of all threads


def _compared(sampler: Sampler, source: str | Arrays, arrays: Arrays) -> Sequence[str]:
    def copy() -> None:
        _ = [each.copy() for each in arrays.values()]

    there = [np.zeros_like(each) for each in arrays.values()]

    def over() -> None:
        for each, place in zip(arrays.values(), there, strict=True):
            np.copyto(place, each)

    read = copy if isinstance(source, Mapping) else lambda: _read(source)
    works = (over, copy, read, lambda: sampler.update_weights(source))
    rounds = [[_taken(work) for work in works] for _ in range(WARMING + ROUNDS)][WARMING:]
    by_work = list(zip(*rounds, strict=True))
    cpu, shortest = (
        [of([each.processor for each in taken]) for taken in by_work]
        for of in (statistics.median, min)
    )
    ratios = (times[-1] / times[place] for place in (1, 2) for times in (cpu, shortest))
    clock = [min(each.clock for each in taken) for taken in by_work[1:]]
    return *map(_ms, cpu), *(f"{each:.2f}" for each in ratios), *map(_ms, clock)


def _read(source: str) -> None:
    """Read the bytes of a source into new arrays, one per tensor of a safetensors file."""
    path = Path("/dev/shm") / source[4:] if source.startswith("shm:") else Path(source)
    if path.is_dir():
        _ = [np.fromfile(each, np.uint8) for each in path.rglob("*") if each.is_file()]
        return
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        places = (each["data_offsets"] for each in header.values() if "data_offsets" in each)
        _ = [np.fromfile(file, np.uint8, end - start) for start, end in places]


def _taken(work: Callable[[], object]) -> _Taken:
    """Measure a call, and what is freed on another thread behind it."""
    give_back_unused()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    work()
    clock_s = time.perf_counter() - began_s
    for thread in threading.enumerate():
        if thread.name.startswith("free old weights"):
            thread.join()
    return _Taken(clock_s, time.process_time() - began_cpu_s)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"


def gaps(bf16: Path, sources: Sources) -> Table:
    table = Table(
        "Streams beside a swap of weights",
        f"SmolLM2-135M-Instruct in bfloat16, {STREAMS} streams, each of one answer of {ANSWER} "
        f"tokens after another; all weights are replaced {SWAPS} times meanwhile, a swap after the "
        "other. Answers that have begun end on the old weights (`wait`), go on (`keep`) or are "
        f"computed again (`recompute`). Milliseconds between two tokens of an answer. Bar: "
        f"{BAR_MS}, and no answer lost. Without swaps: ten seconds of the same streams.",
        ("mode", "source", "median", "longest", f"over {BAR_MS}", "answers whole", "swap ms"),
    )
    with TimedSampler(str(bf16), config=CONFIG) as sampler:
        table.add("no swap", "", *_streamed(sampler, _undisturbed)[:-1], "")
        for mode in (Pausing.KEEP, Pausing.RECOMPUTE, Pausing.WAIT):
            for name, source in sources.items():
                seen = _streamed(sampler, lambda s=source, m=mode: _swapped(sampler, s, m))
                table.add(mode, name, *seen)
        table.add("no swap", "", *_streamed(sampler, _undisturbed)[:-1], "")
    return table


def _undisturbed() -> list[float]:
    time.sleep(10.0)
    return [10.0]


def _swapped(sampler: Sampler, source: str | Arrays, mode: Pausing) -> list[float]:
    took: list[float] = []
    for _ in range(SWAPS):
        began_s = time.perf_counter()
        sampler.update_weights(source, mode=mode)
        took.append(time.perf_counter() - began_s)
    return took


def _streamed(sampler: TimedSampler, meanwhile: Callable[[], list[float]]) -> list[str]:
    """Return the figures of a row: of streams while something else is done, and of that."""
    rng, ended = np.random.default_rng(0), threading.Event()
    sampler.times_s = {}

    def stream(prompt: tuple[int, ...]) -> list[int]:
        lengths: list[int] = []
        while not ended.is_set():
            (answer,) = sampler.sample([prompt], max_tokens=ANSWER)
            lengths.append(len(answer.tokens))
        return lengths

    with ThreadPoolExecutor(STREAMS) as pool:
        streams = [pool.submit(stream, random_prompt(rng, 32)) for _ in range(STREAMS)]
        time.sleep(1.0)  # the first prompts
        try:
            took = meanwhile()
        finally:
            ended.set()
        answers = [length for each in streams for length in each.result()]
    between = 1e3 * np.concatenate([np.diff(each) for each in sampler.times_s.values()])
    whole = sum(each == ANSWER for each in answers)
    return [
        *(f"{each:.0f}" for each in (np.median(between), between.max())),
        f"{100 * (between > BAR_MS).mean():.1f} %",
        f"{whole} of {len(answers)}",
        _ms(statistics.median(took)),
    ]
