"""Decode throughput with an adapter in every row, against the base without room for adapters.

All models lie in this process and decode in turns, so that a noisy machine slows all: the ratio is
the figure.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from model_server.checkpoints.opening import open_checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, SequenceUpdate
from model_server.loading.loaded import Loaded, LoadedAdapter
from model_server.loading.loader import ModelLoader, make_loader
from tests.demo_model import demo_model
from tests.model_server.checkpoints.adapter_folder import ALL, write_config
from tests.tools.bench.demo import COMPILED, random_prompt, request, spec_of
from tests.tools.bench.table import Table

BATCH, PLACES, ROUNDS = 32, 16, 7
PROMPT_TOKENS, ANSWER_TOKENS = 32, 64
# Rank, and the layers that adapters change: PEFT's defaults for Llama, and all.
CASES = ((8, ("q_proj", "v_proj")), (8, ALL), (16, ALL))


def run() -> Table:
    loader = make_loader(ModelServerConfig(jax_cache_dir=COMPILED, slots=BATCH))
    table = Table(
        "Adapters in a batch",
        f"SmolLM2-135M-Instruct, bf16 weights, greedy, {BATCH} sequences of {PROMPT_TOKENS} + "
        f"{ANSWER_TOKENS} tokens; median of {ROUNDS} rounds, in turns. Plain: without room "
        f"for adapters. Idle: with {PLACES} places and no adapter in the batch. Adapted: {PLACES} "
        "adapters, two rows each.",
        ("rank", "layers changed", "plain tokens/s", "idle / plain", "adapted / plain"),
    )
    plain = Decoding(_load(loader, "plain"))
    with tempfile.TemporaryDirectory() as folder:
        for rank, targets in CASES:
            name = f"room-{rank}-{len(targets)}"
            based = Decoding(_load(loader, name, MAX_ADAPTERS=PLACES, MAX_ADAPTER_RANK=rank))
            places = _adapters(loader, Path(folder), name, rank, targets)
            rates = [_turn(plain, based, places) for _ in range(ROUNDS + 1)][1:]
            medians = [statistics.median(each) for each in zip(*rates, strict=True)]
            idle, adapted = (
                statistics.median(rate[kind] / rate[0] for rate in rates) for kind in (1, 2)
            )
            what = "all" if targets == ALL else ", ".join(targets)
            table.add(rank, what, f"{medians[0]:.0f}", f"{idle:.2f}", f"{adapted:.2f}")
            based.close()
    plain.close()
    return table


class Decoding:
    """An engine, and how many tokens a second it makes."""

    def __init__(self, loaded: Loaded) -> None:
        self._ended = threading.Semaphore(0)
        self._engine = Engine(loaded.runner, self._keep, loaded.step_times)

    def _keep(self, updates: list[SequenceUpdate]) -> None:
        for update in updates:
            if update.finish or update.error:
                self._ended.release()

    def tokens_per_second(self, places: list[int]) -> float:
        """Ask with these adapters in turn; 0: none."""
        rng = np.random.default_rng(0)
        began_s = time.perf_counter()
        for row in range(BATCH):
            self._engine.submit(
                request(
                    random_prompt(rng, PROMPT_TOKENS),
                    ANSWER_TOKENS,
                    adapter=places[row % len(places)],
                )
            )
        for _ in range(BATCH):
            self._ended.acquire()
        return BATCH * ANSWER_TOKENS / (time.perf_counter() - began_s)

    def close(self) -> None:
        self._engine.close()


def _turn(plain: Decoding, based: Decoding, places: list[int]) -> tuple[float, float, float]:
    return (
        plain.tokens_per_second([0]),
        based.tokens_per_second([0]),
        based.tokens_per_second(places),
    )


def _load(loader: ModelLoader, name: str, **room: int) -> Loaded:
    loaded = loader(spec_of(name, **room), lambda _: None)
    assert isinstance(loaded, Loaded)
    return loaded


def _adapters(
    loader: ModelLoader, folder: Path, base: str, rank: int, targets: tuple[str, ...]
) -> list[int]:
    """Load an adapter into every place."""
    places: list[int] = []
    for index in range(PLACES):
        path = folder / f"{base}-{index}"
        _write(path, rank, targets, index)
        spec = spec_of(path.name, "lora", str(path), BASE=f"/sax/bench/{base}")
        loaded = loader(spec, lambda _: None)
        assert isinstance(loaded, LoadedAdapter)
        places.append(loaded.place)
    return places


def _write(path: Path, rank: int, targets: tuple[str, ...], seed: int) -> None:
    rng, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    base = open_checkpoint(str(demo_model()))
    for name in base.names():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in targets:
            outputs, inputs = base.shape(name)
            for letter, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                made = rng.normal(scale=0.02, size=shape).astype(np.float32)
                tensors[f"base_model.model.{module}.lora_{letter}.weight"] = made
    base.close()
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    write_config(path, rank=rank, alpha=rank, targets=targets)
