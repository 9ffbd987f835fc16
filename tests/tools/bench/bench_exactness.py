"""Whether a request gets the same bits in any company, and when its text is scored again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from model_server.checkpoints.packed import Packing
from model_server.engine.engine import EngineRequest
from model_server.engine.types import Sampling
from model_server.kernels.cpu.tiles import (
    ByteForm,
    byte_product,
    byte_tiles,
    plain_product,
    plain_tiles,
)
from model_server.loading.loaded import Loaded
from model_server.models.weights.quantization import quantize
from tests.model_server.recorded_answers import Answer, Recorder, scoring, unlike
from tests.tools.bench.demo import load_demo, random_prompt, request
from tests.tools.bench.table import Table

REQUESTS = 32
SLOTS = 32
LONGEST = 600  # tokens of a prompt
# Weights, and the overrides that make them.
WEIGHTS: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    "int8": {"QUANTIZE": "int8"},
    "int8:32": {"QUANTIZE": "int8:32"},
    "int4:32": {"QUANTIZE": "int4:32"},
    "stored (Q4_1)": {"QUANTIZE": "stored"},
    "float32": {"DTYPE": "float32"},
    "float8": {"QUANTIZE": "float8"},
}
OUTPUTS, INPUTS = 3072, 576  # gate and up of SmolLM2-135M
ROWS = (1, 8, 32, 512)
TURNS = 200
PACKINGS = {
    "int8": Packing("int8", None, False),
    "int8:32": Packing("int8", 32, False),
    "int4": Packing("int4", None, False),
    "int4:32": Packing("int4", 32, True),
}


def requests() -> list[EngineRequest]:
    """Sampled requests, each with its seed, a prompt of 2 to 600 tokens and 8 to 24 to come."""
    rng = np.random.default_rng(3)
    lengths = np.geomspace(2, LONGEST, REQUESTS).astype(int)
    return [
        request(
            random_prompt(rng, int(length)),
            int(rng.integers(8, 25)),
            Sampling(1.0, top_k=0, top_p=1.0, seed=1000 + number),
        )
        for number, length in enumerate(rng.permutation(lengths))
    ]


def run() -> list[Table]:
    return [company(), price()]


def company(names: Sequence[str] = tuple(WEIGHTS)) -> Table:
    table = Table(
        "The same bits in any company",
        f"SmolLM2-135M-Instruct, {REQUESTS} requests at temperature 1, each with its seed, prompts "
        f"of 2 to {LONGEST} tokens, {SLOTS} slots: how many have the same tokens / the same tokens "
        "and log-probabilities, to the last bit. Scored: the log-probabilities of a text as part "
        "of a prompt are those with which it was generated.",
        (
            "weights",
            "alone, then cached",
            "alone, then in a crowd",
            "crowd first, then alone",
            "scored alone",
            "scored in a crowd",
        ),
    )
    for name in names:
        table.add(name, *_row(load_demo(**WEIGHTS[name])))
    return table


def _row(loaded: Loaded) -> list[str]:
    wanted = requests()
    with closing(Recorder(loaded.runner, loaded.step_times)) as first:
        alone, cached, crowd = (first.answers(wanted, at_once) for at_once in (1, 1, SLOTS))
    with closing(Recorder(loaded.runner, loaded.step_times)) as second:
        crowd_first, then_alone = second.answers(wanted, SLOTS), second.answers(wanted)
    texts = [scoring(one, answer) for one, answer in zip(wanted, alone, strict=True)]
    with closing(Recorder(loaded.runner, loaded.step_times)) as third:
        scores = [third.answers(texts, at_once) for at_once in (1, SLOTS)]
    given = [Answer((), answer.logprobs) for answer in alone]
    return [
        _equal(alone, cached),
        _equal(alone, crowd),
        _equal(crowd_first, then_alone),
        *(f"{REQUESTS - len(unlike(given, found))} of {REQUESTS}" for found in scores),
    ]


def _equal(one: list[Answer], other: list[Answer]) -> str:
    texts = sum(a.tokens == b.tokens for a, b in zip(one, other, strict=True))
    return f"{texts} / {REQUESTS - len(unlike(one, other))}"


def price() -> Table:
    """Compare products of quantised weights, of one order for any number of rows, with the fastest
    product of many rows that there is: of the same numbers as bfloat16 from the start.
    """
    table = Table(
        "The price of one order",
        f"Products with a weight of {OUTPUTS} x {INPUTS}: the time of bfloat16 weights of the same "
        f"numbers over that of quantised ones, the shortest of {TURNS} calls of each, in turns. "
        "Below 1 another order could be faster; at few rows fewer bytes are.",
        ("weights", *(f"{rows} row{'s' * (rows > 1)}" for rows in ROWS)),
    )
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(OUTPUTS, INPUTS)).astype(np.float32)
    plain = jnp.asarray(plain_tiles(weight.astype(ml_dtypes.bfloat16)))
    for name, packing in PACKINGS.items():
        blocks = quantize(weight, packing)
        form = ByteForm(
            weight.shape, packing.block or INPUTS, int(packing.kind[3:]), packing.offset
        )
        tiles = jax.tree.map(jnp.asarray, byte_tiles(form, blocks))
        ratios: list[str] = []
        for rows in ROWS:
            x = jnp.asarray(rng.normal(size=(rows, INPUTS)), jnp.float32)
            fast = jax.jit(partial(plain_product, weight.shape)).lower(x, plain).compile()
            exact = jax.jit(partial(byte_product, form)).lower(x, tiles).compile()
            ratios.append(f"{_ratio(partial(fast, x, plain), partial(exact, x, tiles)):.2f}")
        table.add(name, *ratios)
    return table


def _ratio(one: Callable[[], jax.Array], other: Callable[[], jax.Array]) -> float:
    """Return the shortest time of one over that of the other."""
    times: list[tuple[float, float]] = []
    for _ in range(TURNS):
        begun = time.perf_counter()
        one().block_until_ready()
        between = time.perf_counter()
        other().block_until_ready()
        times.append((between - begun, time.perf_counter() - between))
    return min(first for first, _ in times) / min(second for _, second in times)
