"""Draws of a large vocabulary: those from a few likely tokens are those from all of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from model_server.engine import sampling
from model_server.engine.sampling import RowSampling, draw, race
from tests.model_server.examples import examples

VOCAB = 2 * 32 * 128 + 37  # larger than what candidates are taken from, and not a whole block
ROWS = 6
LIMITS: dict[str, Any] = {
    "top_k": st.sampled_from([0, 1, 40, 127, 128, 129, 1000, 5000]),
    "top_p": st.sampled_from([1.0, 0.05, 0.5, 0.9, 0.999]),
    "min_p": st.sampled_from([0.0, 1e-4, 0.05, 1.0]),
    "typical_p": st.sampled_from([1.0, 0.2, 0.95]),
    "temperature": st.sampled_from([0.0, 0.3, 1.0, 3.0]),
}
_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "temperature": 1.0}
compiled = cache(lambda: jax.jit(draw))


def rows(limits: list[dict[str, Any]]) -> RowSampling:
    columns = {name: [{**_OFF, **each}[name] for each in limits] for name in _OFF}
    kinds = {name: jnp.int32 if name == "top_k" else jnp.float32 for name in _OFF}
    made = {name: jnp.asarray(column, kinds[name]) for name, column in columns.items()}
    count = len(limits)
    none = jnp.zeros(count, jnp.int32)
    seed = jnp.asarray(np.arange(2 * count).reshape(count, 2), jnp.uint32)
    return RowSampling(**made, seed=seed, position=none + 5, target=none - 1, tops=none)


def kept(logits: np.ndarray, limits: dict[str, Any]) -> np.ndarray:
    """Return the weights that the limits keep, f64[V], by sorting."""
    limits = {**_OFF, **limits}
    weights = np.exp((logits - logits.max()) / limits["temperature"])
    weights = np.where(weights >= limits["min_p"], weights, 0.0)
    if limits["top_k"]:
        least = np.sort(weights)[-min(limits["top_k"], len(weights))]
        weights = np.where(weights >= least, weights, 0.0)
    if limits["top_p"] < 1:
        weights = _most(weights, weights, limits["top_p"])
    if limits["typical_p"] < 1:
        shares = weights / weights.sum()
        surprise = -np.log(np.where(shares > 0, shares, 1.0))
        nearness = np.where(shares > 0, 1 / (1 + abs(surprise - (shares * surprise).sum())), 0.0)
        weights = np.where(_most(nearness, shares, limits["typical_p"]) > 0, weights, 0.0)
    return weights


def _most(order: np.ndarray, measure: np.ndarray, share: float) -> np.ndarray:
    descending = np.argsort(-order, kind="stable")
    reached = np.cumsum(measure[descending]) >= share * measure.sum()
    return np.where(order >= order[descending[int(reached.argmax())]], order, 0.0)


def logits(seed: int, spread: float) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, VOCAB)).astype(np.float32) * spread


@examples(
    st.integers(0, 10**6),
    st.sampled_from([0.5, 2.0, 6.0]),
    st.lists(st.fixed_dictionaries({}, optional=LIMITS), min_size=ROWS, max_size=ROWS),
    few=20,
    many=60,
)
def test_a_draw_is_the_race_of_what_a_sort_keeps(
    seed: int, spread: float, limits: list[dict[str, Any]]
) -> None:
    values, asked = logits(seed, spread), rows(limits)
    got = np.asarray(compiled()(values, asked))
    drawn = [row for row, each in enumerate(limits) if each.get("temperature", 1.0) > 0]
    weights = np.zeros((ROWS, VOCAB), np.float32)
    for row in drawn:
        weights[row] = kept(values[row].astype(np.float64), limits[row])
    tokens = jnp.broadcast_to(jnp.arange(VOCAB, dtype=jnp.uint32), (ROWS, VOCAB))
    wanted = np.asarray(race(jnp.asarray(weights), tokens, asked.seed, asked.position))
    # Sums in another order may move a cut-off by a token, which seldom is the one that wins.
    assert (got[drawn] != wanted[drawn]).sum() <= 1


def test_few_tokens_are_enough_where_the_limits_drop_one_as_likely_as_those_left_out() -> None:
    few = jax.jit(sampling._drawn_from_few)
    cases: list[tuple[float, dict[str, Any], bool]] = [
        (6.0, {"top_k": 40}, True),
        (6.0, {"min_p": 0.1}, True),
        (6.0, {"top_p": 0.9}, True),
        (6.0, {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9}, True),
        (6.0, {"temperature": 0.0}, True),
        (0.1, {"top_p": 0.9}, False),  # nine tokens of ten
        (6.0, {"top_k": 5000}, False),  # more than there are candidates
        (6.0, {"top_k": 5000, "top_p": 0.5}, False),  # half of what the 5000 weigh
        (6.0, {"typical_p": 0.9}, False),  # not the likeliest ones
    ]
    for spread, limits, enough in cases:
        _, complete = few(logits(1, spread), rows([limits] * ROWS))
        assert bool(complete) == enough, (spread, limits)


def test_a_row_without_limits_beside_others_draws_from_the_whole_vocabulary() -> None:
    count = 400
    values = np.broadcast_to(np.zeros(VOCAB, np.float32), (count, VOCAB))
    asked = rows([{}] * count)._replace(position=jnp.arange(count, dtype=jnp.int32))
    asked = asked._replace(
        seed=jnp.zeros((count, 2), jnp.uint32), top_k=jnp.zeros(count, jnp.int32).at[0].set(1)
    )
    drawn = np.asarray(compiled()(values, asked))
    assert len(set(drawn.tolist())) > 350  # 400 of 8229 tokens, as likely as each other
