"""Whether a request gets the same bits in any company, and when its text is scored again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from model_server.engine.engine import EngineRequest
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from tests.model_server.recorded_answers import Answer, Recorder, scoring, unlike
from tests.tools.bench.demo import load_demo, random_prompt, request
from tests.tools.bench.table import Table

REQUESTS = 32
SLOTS = 32
LONGEST = 600  # tokens of a prompt
# Weights, and the overrides that make them.
WEIGHTS: dict[str, dict[str, object]] = {
    "bfloat16": {},
    "int8": {"QUANTIZE": "int8"},
    "int8:32": {"QUANTIZE": "int8:32"},
    "int4:32": {"QUANTIZE": "int4:32"},
    "stored (Q4_1)": {"QUANTIZE": "stored"},
    "float32": {"DTYPE": "float32"},
    "float8": {"QUANTIZE": "float8"},
}


def requests() -> list[EngineRequest]:
    """Sampled requests, each with its seed, a prompt of 2 to 600 tokens and 16 to 48 to come."""
    rng = np.random.default_rng(3)
    lengths = np.geomspace(2, LONGEST, REQUESTS).astype(int)
    return [
        request(
            random_prompt(rng, int(length)),
            int(rng.integers(16, 49)),
            Sampling(1.0, top_k=0, top_p=1.0, seed=1000 + number),
        )
        for number, length in enumerate(rng.permutation(lengths))
    ]


def run(names: Sequence[str] = tuple(WEIGHTS)) -> Table:
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
