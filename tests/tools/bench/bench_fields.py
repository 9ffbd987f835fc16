"""Decode throughput with every sampling field in use on every row against plain greedy decoding.

Both run on the same engine and runner, in turns, so that a noisy machine slows both: the ratio is
the figure.
"""

from __future__ import annotations

import statistics

from msgspec.structs import replace

from model_server.engine.types import Sampling
from tests.tools.bench.rounds import PROMPT_TOKENS, TOKENS, Rounds, load
from tests.tools.bench.table import Table

BATCHES = (32,)
_CHOICE = ("temperature", "top_k", "top_p", "min_p", "typical_p")
ROUNDS = 5
_DRAWN = Sampling(
    temperature=0.8, top_k=40, top_p=0.95, seed=7, logprobs=5, min_p=0.01, typical_p=0.95
)
_EDITED = Sampling(
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    seed=0,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    repetition_penalty=1.1,
    logit_bias=tuple((token, 1.5) for token in range(100, 140)),
    allowed=tuple(range(3, 40000)),
    min_tokens=50,
    ends=(0, 2),
    bad_words=((5, 6), (7, 8, 9), (11,)),
)
KINDS = {
    "drawn: temperature, top_k, top_p, min_p, typical_p, 5 logprobs": _DRAWN,
    "edited: penalties, biases, allowed tokens, min_tokens, bad words": _EDITED,
    "all of these": replace(
        _EDITED, **{name: getattr(_DRAWN, name) for name in (*_CHOICE, "seed", "logprobs")}
    ),
}


def run() -> Table:
    rounds = Rounds(load(speculation="off"))
    table = Table(
        "Every sampling field on every row against plain greedy decoding",
        f"SmolLM2-135M-Instruct, bf16 weights, {PROMPT_TOKENS}-token prompts, {TOKENS} tokens; "
        f"median of {ROUNDS} rounds, in turns on one engine, without draft tokens: greedy answers "
        "to random prompts repeat themselves, and would get ahead. Bar at batch 32: 0.90.",
        ("fields", "batch", "plain tokens/s", "with fields, tokens/s", "ratio (median of pairs)"),
    )
    for batch in BATCHES:
        for name, sampling in KINDS.items():
            rounds.tokens_per_second(batch, sampling)
            pairs = [
                (rounds.tokens_per_second(batch), rounds.tokens_per_second(batch, sampling))
                for _ in range(ROUNDS)
            ]
            plain, used = (statistics.median(each) for each in zip(*pairs, strict=True))
            ratio = statistics.median(used / plain for plain, used in pairs)
            table.add(name, batch, f"{plain:.0f}", f"{used:.0f}", f"{ratio:.3f}")
    rounds.engine.drain(60)
    return table
