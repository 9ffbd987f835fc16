"""What a runner answers on meshes of four fake devices; a process of its own.

The number of devices is fixed before jax starts, so tests call this as a script:

    python -m tests.model_server.models.tokens_on_meshes 'dense 1x2x2 {"tokens": "data"}' ...

Prints JSON: for each run its tokens, the bytes of weights on the fullest device as a share of all,
and how many rows arrays of the model's width have on a device.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from model_server.engine.buckets import Bucket
from model_server.engine.limits import EngineLimits
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_program import StepProgram
from model_server.engine.types import PageGrant, Row, Sampling, SlotSampling, Step
from model_server.kernels import xla
from model_server.kernels.pages import allocate
from model_server.loading.random_weights import random_weights
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import Layout, layout_of
from tests.model_server.models.on_meshes import largest_share

EMBED, ROWS = 32, 20  # four decodes and two blocks of eight
BUCKET = Bucket(4, 2)
LIMITS = EngineLimits(
    slots=4,
    pages=16,
    page_size=8,
    max_context=32,
    token_budget=ROWS,
    max_logit_rows=4,
    prefill_block=8,
)
# Two KV heads: divided on two devices, copied on four.
DENSE: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": EMBED,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EXPERTS: Mapping[str, Any] = DENSE | {
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
MODELS = {"dense": DENSE, "experts": EXPERTS}
GREEDY = Sampling(0.0, 0, 1.0, 0, repetition_penalty=1.5, frequency_penalty=0.2)
SEEDED = Sampling(1.0, 40, 0.9, 7, logit_bias=((4, 3.0),), allowed=tuple(range(0, 96, 2)))


def run(name: str, shape: list[int], rules: Mapping[str, str | None]) -> dict[str, Any]:
    """The tokens of two sequences on one mesh."""
    overrides = {"DTYPE": '"float32"', "SHARDING_RULES": json.dumps(rules)}
    recipe: Any = make_recipe("auto", MODELS[name], overrides)
    runner, share = _runner(recipe, layout_of(shape, recipe.rules).placed())
    runner.compile(lambda _: None)
    text = runner._compiled[BUCKET].as_text()
    found = re.findall(rf"f32\[(\d+),{EMBED}\]", text)
    answers = _answers(runner)
    runner.close()
    return {"tokens": answers, "share": share, "rows": sorted(set(map(int, found)))}


def _runner(recipe: Recipe, layout: Layout) -> tuple[ModelRunner, float]:
    module, cache = recipe.blueprint(layout), recipe.cache(layout.shards("heads"))
    leaves = random_weights(module.declarations, 3, lambda _: None, layout)
    # Spread out, so that the likeliest token is not a matter of rounding.
    leaves = [leaf * 10 if leaf.ndim > 1 else leaf for leaf in leaves]
    pages = allocate(cache, LIMITS.pages, 8, jnp.dtype("float32"), layout.pages)
    program = StepProgram(
        module, leaves, pages, LIMITS, xla.KERNEL, layout.row_split(), vocab=recipe.vocab
    )
    return ModelRunner(program, leaves, pages, [BUCKET]), largest_share(leaves)


def _answers(runner: ModelRunner) -> list[list[int]]:
    """A greedy and a seeded sequence: prompts in chunks beside decodes, then decodes alone."""
    prompts = np.random.default_rng(1).integers(0, 96, size=(2, 12)).tolist()
    samplings = [
        SlotSampling(slot, how, tuple(prompt), len(prompt))
        for slot, how, prompt in zip((0, 2), (GREEDY, SEEDED), prompts, strict=True)
    ]
    grants = [PageGrant(0, 0, (5, 9, 3, 7)), PageGrant(2, 0, (1, 2, 4, 6))]
    first = Row(1, 0, 0, tuple(prompts[0]), True)
    steps = [[first], [_decode(1, 0, 12), Row(2, 2, 0, tuple(prompts[1][:8]), False)]]
    steps.append([_decode(1, 0, 13), Row(2, 2, 8, tuple(prompts[1][8:]), True)])
    steps += [[_decode(1, 0, 14 + n), _decode(2, 2, 12 + n)] for n in range(6)]
    answers: list[list[int]] = [[], []]
    for number, rows in enumerate(steps):
        told = (tuple(grants), tuple(samplings)) if number == 0 else ()
        (result,) = runner.launch(Step(number, tuple(rows), *told)).result()
        for row, got in zip(rows, result.rows, strict=True):
            answers[row.sequence - 1] += [got.token] if got.token is not None else []
    return answers


def _decode(sequence: int, slot: int, start: int) -> Row:
    return Row(sequence, slot, start, (), True)


def main() -> None:
    results = {}
    for each in sys.argv[1:]:
        name, sizes, rules = each.split(" ", 2)
        results[each] = run(name, [int(size) for size in sizes.split("x")], json.loads(rules))
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
