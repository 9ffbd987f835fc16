"""What each way of quantising weights costs in text and gains in bytes and speed.

The text is tests/tools/bench/text.txt, written for this purpose. Quality is measured against the
float32 logits of the same model; speed against bfloat16 weights of the same server, in turns.
"""

from __future__ import annotations

import json
import statistics
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.opening import open_checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.running.runner import ModelRunner
from model_server.loading.loader import ModelLoader, make_loader
from model_server.loading.weights import read_weights
from model_server.models.registry import make_recipe
from tests.demo_model import demo_model
from tests.model_server.tiny import logits_of
from tests.tools.bench.bench_engine import bare_tokens_per_second
from tests.tools.bench.demo import COMPILED, spec_of
from tests.tools.bench.table import Table

TEXT = Path(__file__).with_name("text.txt")
SCHEMES = ("int8", "int8:32", "int4:32", "int4", "float8", "stored")
# With ACTIVATIONS "int8", too.
IN_BYTES = ("int8:32", "int4:32", "stored")
BATCHES = (1, 8, 32)
ROUNDS = 3


def run() -> list[Table]:
    return [_quality(), _speed()]


def _quality() -> Table:
    ids = _ids()
    table = Table(
        "Quantised weights: quality",
        f"SmolLM2-135M-Instruct (its file is Q4_1: 4 bits, blocks of 32) on {len(ids)} tokens of "
        "tests/tools/bench/text.txt; KL divergence of the next token against float32, in nats.",
        ("QUANTIZE", "ACTIVATIONS", "weights MB", "perplexity", "mean KL", "same top token"),
    )
    exact = _log_probs(ids, {"DTYPE": "float32"})[0]
    for title, overrides in [
        ("null, float32", {"DTYPE": "float32"}),
        ("null", {}),
        *((scheme, {"QUANTIZE": scheme}) for scheme in SCHEMES),
        *((scheme, {"QUANTIZE": scheme, "ACTIVATIONS": "int8"}) for scheme in IN_BYTES),
    ]:
        got, size = _log_probs(ids, overrides)
        divergence = (np.exp(exact) * (exact - got)).sum(-1).mean()
        perplexity = np.exp(-np.mean(got[np.arange(len(ids) - 1), ids[1:]]))
        same = (got.argmax(-1) == exact.argmax(-1)).mean()
        activations = overrides.get("ACTIVATIONS", "null")
        table.add(
            *(title, activations, f"{size / 1e6:.0f}", f"{perplexity:.2f}"),
            *(f"{divergence:.4f}", f"{same:.1%}"),
        )
    return table


def _ids() -> np.ndarray:
    with closing(open_checkpoint(str(demo_model()))) as checkpoint:
        return np.asarray(checkpoint.tokenizer().encode(TEXT.read_text()))


def _log_probs(ids: np.ndarray, overrides: dict[str, str]) -> tuple[np.ndarray, int]:
    """f32[S, V] and the bytes of the weights."""
    with closing(open_checkpoint(str(demo_model()))) as checkpoint:
        given = {key: json.dumps(value) for key, value in overrides.items()}
        recipe = make_recipe("auto", checkpoint.config, given)
        module = recipe.blueprint(checkpoint=checkpoint)
        leaves = read_weights(module.declarations, checkpoint, lambda _: None)
    logits = logits_of(module.assemble(leaves), recipe, ids)
    return np.asarray(jax.nn.log_softmax(logits.astype(jnp.float32))), module.bytes


def _speed() -> Table:
    table = Table(
        "Quantised weights: speed",
        "The bare compiled decode step (see above), tokens/s over those of bfloat16 weights in "
        f"the same minute; median of {ROUNDS} pairs.",
        ("QUANTIZE", "ACTIVATIONS", *(f"batch {batch}" for batch in BATCHES)),
    )
    load = make_loader(ModelServerConfig(jax_cache_dir=COMPILED))
    plain = _runner(load, None)
    every = [*((scheme, None) for scheme in SCHEMES), *((scheme, "int8") for scheme in IN_BYTES)]
    for scheme, activations in every:
        runner = _runner(load, scheme, activations)
        ratios = (f"{_ratio(runner, plain, batch):.2f}" for batch in BATCHES)
        table.add(scheme, activations or "null", *ratios)
        runner.close()
    plain.close()
    return table


def _ratio(runner: ModelRunner, plain: ModelRunner, batch: int) -> float:
    pairs = [
        (bare_tokens_per_second(runner, batch), bare_tokens_per_second(plain, batch))
        for _ in range(ROUNDS)
    ]
    return statistics.median(fast / slow for fast, slow in pairs)


def _runner(load: ModelLoader, quantize: str | None, activations: str | None = None) -> Any:
    name = str(abs(hash((quantize, activations))))
    spec = spec_of(name, "auto", QUANTIZE=quantize, ACTIVATIONS=activations)
    return load(spec, lambda _: None).runner
