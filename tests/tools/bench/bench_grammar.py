"""Decode throughput with a JSON schema on every row against plain greedy decoding.

Both run on the same engine and runner, in turns, so that a noisy machine slows both: the ratio is
the figure.
"""

from __future__ import annotations

import asyncio
import json
import statistics

from model_server.engine.types import Sampling
from model_server.grammars.constraint import Constraint
from tests.tools.bench.rounds import PROMPT_TOKENS, TOKENS, Rounds, load
from tests.tools.bench.table import Table

BATCHES = (1, 32)
ROUNDS = 7
# Long enough that no answer ends before the measurement does.
SCHEMA = {
    "type": "array",
    "minItems": 60,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}


def run() -> Table:
    loaded = load()
    assert loaded.grammars is not None
    grammar = asyncio.run(loaded.grammars.compile(Constraint("json_schema", json.dumps(SCHEMA))))
    rounds = Rounds(loaded)
    guide = Sampling(0.0, 0, 1.0, seed=0, guided=True)
    table = Table(
        "A JSON schema on every row against plain greedy decoding",
        f"SmolLM2-135M-Instruct, bf16 weights, {PROMPT_TOKENS}-token prompts, {TOKENS} tokens; "
        f"median of {ROUNDS} rounds, in turns on one engine. Bar at batch 32: 0.85.",
        ("batch", "plain tokens/s", "schema tokens/s", "schema / plain (median of pairs)"),
    )
    for batch in BATCHES:
        plain, guided = [], []
        rounds.tokens_per_second(batch, guide, grammar)
        for _ in range(ROUNDS):
            plain.append(rounds.tokens_per_second(batch))
            guided.append(rounds.tokens_per_second(batch, guide, grammar))
        ratios = [one / other for one, other in zip(guided, plain, strict=True)]
        table.add(
            batch,
            f"{statistics.median(plain):.0f}",
            f"{statistics.median(guided):.0f}",
            f"{statistics.median(ratios):.3f}",
        )
    rounds.engine.drain(60)
    return table
