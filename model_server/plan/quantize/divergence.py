"""Compares models of one text: perplexity, and how far each one's next tokens are from the first's.

All are read at once, a few layers of each in memory, with the products that a server computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from model_server.plan.quantize.calibration import Rows, embedded_rows
from model_server.plan.quantize.segments import SegmentedModel, run
from sax.types import Progress

_ROWS = 128  # whose logits are in memory at once


@dataclass(frozen=True, slots=True)
class Quality:
    """What a model makes of a text."""

    perplexity: float
    divergence: float  # mean Kullback-Leibler divergence of the next token from the first's, nats
    same: float  # share of the places where both find the same token most likely


def compare(
    models: Mapping[str, SegmentedModel],
    tokens: np.ndarray,  # i32[N, T]
    work: Path,
    report: Callable[[Progress], None],
) -> dict[str, Quality]:
    """Return the quality of each model by its name; the first is what others are compared with.

    work: a folder for what the layers make of the text.
    """
    rows = {
        name: embedded_rows(model, tokens, work / f"{number}.rows")
        for number, (name, model) in enumerate(models.items())
    }
    stages = next(iter(models.values())).stages
    for stage in stages:
        report(Progress("comparing", stage.first, stages[-1].end, "layers"))
        for name, model in models.items():
            segment = model.segment(stage)
            for which in rows[name].parts():
                made = run(segment, rows[name].part(which), rows[name].inputs(which))
                rows[name].put(which, made)
    report(Progress("comparing", stages[-1].end, stages[-1].end, "layers"))
    return _qualities(models, rows, tokens)


def _qualities(
    models: Mapping[str, SegmentedModel], rows: Mapping[str, Rows], tokens: np.ndarray
) -> dict[str, Quality]:
    parts: dict[str, list[np.ndarray]] = {name: [] for name in models}
    for number, text in enumerate(tokens):
        which = slice(number, number + 1)
        x = {name: held.part(which) for name, held in rows.items()}
        for at in range(0, len(text), _ROWS):
            end = min(at + _ROWS, len(text))
            found = {name: _log_probs(models[name], x[name][at:end]) for name in models}
            exact = next(iter(found.values()))
            for name, got in found.items():
                parts[name].append(_sums(exact, got, text[at + 1 : end + 1]))
    return {name: _quality(sums) for name, sums in parts.items()}


def _log_probs(model: SegmentedModel, x: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(model.logits(x).astype(jnp.float32), axis=-1)


def _sums(exact: jax.Array, got: jax.Array, following: np.ndarray) -> np.ndarray:
    """f64[5]: surprise, tokens that follow, divergence, same tokens, places; summed."""
    divergence = jnp.sum(jnp.exp(exact) * (exact - got))
    same = jnp.sum(jnp.argmax(exact, -1) == jnp.argmax(got, -1))
    surprise = -jnp.sum(got[np.arange(len(following)), following])
    return np.asarray([surprise, len(following), divergence, same, len(got)], np.float64)


def _quality(sums: Sequence[np.ndarray]) -> Quality:
    surprise, following, divergence, same, places = np.sum(sums, axis=0)
    return Quality(float(np.exp(surprise / following)), divergence / places, same / places)
