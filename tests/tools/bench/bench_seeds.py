"""How often a seed gives the same text alone and in a batch.

The random numbers are the same in any batch; the logits are not quite, because steps of different
sizes round differently. A draw changes only where two tokens are within that rounding of a tie.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from tests.tools.bench.demo import random_prompt, request
from tests.tools.bench.rounds import load
from tests.tools.bench.table import Table

REQUESTS = 32
TOKENS = 48
MODEL_DTYPES = ("bfloat16", "float32")


def requests(mixed: bool) -> list[EngineRequest]:
    """Sampled requests; mixed: every fourth is greedy and lengths differ."""
    rng = np.random.default_rng(3)
    made = []
    for number in range(REQUESTS):
        length = int(rng.integers(4, 120)) if mixed else 24
        greedy = mixed and number % 4 == 3
        made.append(
            request(
                random_prompt(rng, length),
                TOKENS,
                Sampling(0.0 if greedy else 1.0, top_k=0, top_p=1.0, seed=1000 + number),
            )
        )
    return made


def texts(loaded: Loaded, wanted: Sequence[EngineRequest], at_once: int) -> list[list[int]]:
    """The tokens of every request, so many of them in the engine at a time."""
    found: dict[int, list[int]] = {}
    place = threading.Semaphore(at_once)

    def deliver(updates: list[SequenceUpdate]) -> None:
        for update in updates:
            assert update.error is None, update.error
            if update.result.token is not None:
                found.setdefault(update.sequence, []).append(update.result.token)
            if update.finish is not None:
                place.release()

    engine = Engine(loaded.runner, deliver, loaded.step_times)
    ids = []
    for one in wanted:
        place.acquire()
        ids.append(engine.submit(one))
    for _ in range(at_once):
        place.acquire()
    engine.drain(60)
    return [found[id] for id in ids]


def run() -> Table:
    table = Table(
        "A seed alone and in a batch",
        f"SmolLM2-135M-Instruct, {REQUESTS} requests of {TOKENS} tokens at temperature 1, each "
        "with a seed of its own: the share of texts that are those of the same request alone, and "
        "of tokens that are before the first difference. Mixed: prompts of 4 to 120 tokens, every "
        "fourth request greedy.",
        ("weights", "batch", "equal texts", "equal tokens"),
    )
    for dtype in MODEL_DTYPES:
        loaded = load(dtype)
        for mixed in (False, True):
            wanted = requests(mixed)
            alone = texts(loaded, wanted, 1)
            for at_once in (8, 32):
                batch = texts(loaded, wanted, at_once)
                equal = sum(one == other for one, other in zip(alone, batch, strict=True))
                before = sum(map(_common, alone, batch))
                table.add(
                    dtype,
                    f"{at_once}, mixed" if mixed else at_once,
                    f"{equal} of {REQUESTS}",
                    f"{before / (REQUESTS * TOKENS):.1%}",
                )
    return table


def _common(one: list[int], other: list[int]) -> int:
    """Tokens before the first difference."""
    pairs = zip(one, other, strict=True)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(one))
