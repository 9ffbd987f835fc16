"""The sampler against definitions written with a sort."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from model_server.engine import sampling
from model_server.engine.sampling import RowSampling
from model_server.kernels.cpu import native
from tests.model_server.examples import examples

VOCAB = 300
BATCHES = (64, 5000, 20_000)  # one program each, whatever is drawn
SAMPLERS = {native: jax.jit(partial(sampling.sample, native=native)) for native in (False, True)}


@pytest.fixture(autouse=True, params=SAMPLERS, ids=["XLA", "native"])
def _sampler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with both kernels."""
    if request.param and not native.available():
        pytest.skip("sax was installed without its native kernels: no compiler was found")
    _in_use.append(SAMPLERS[request.param])
    yield
    _in_use.clear()


_in_use: list[Callable[..., sampling.Sampled]] = []


def sample(*arguments: Any) -> sampling.Sampled:
    return _in_use[0](*arguments)


def rows(count: int, **changes: object) -> RowSampling:
    values: dict[str, object] = {
        "temperature": jnp.zeros(count),
        "top_k": jnp.zeros(count, jnp.int32),
        "top_p": jnp.ones(count),
        "min_p": jnp.zeros(count),
        "typical_p": jnp.ones(count),
        "seed": jnp.zeros((count, 2), jnp.uint32),
        "position": jnp.arange(count, dtype=jnp.int32),
        "target": jnp.full(count, -1, jnp.int32),
        "tops": jnp.zeros(count, jnp.int32),
    }
    return RowSampling(**(values | changes))  # type: ignore[arg-type]


def logits(seed: int, count: int = 4) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(count, VOCAB)) * 3, jnp.float32)


def draws(values: jax.Array, count: int, **changes: object) -> np.ndarray:
    """`count` tokens drawn from one row of logits at successive positions."""
    batch = next((size for size in BATCHES if size >= count), BATCHES[-1])
    many = jnp.broadcast_to(values[:1], (batch, VOCAB))
    given = {
        name: jnp.broadcast_to(jnp.asarray(value), (batch, *np.shape(value)))
        for name, value in changes.items()
    }
    found: list[np.ndarray] = []
    for start in range(0, count, batch):
        position = jnp.arange(start, start + batch, dtype=jnp.int32)
        found.append(np.asarray(sample(many, rows(batch, **{"position": position} | given)).tokens))
    return np.concatenate(found)[:count]


def test_temperature_zero_takes_the_first_highest_logit() -> None:
    values = logits(0).at[1, 7].set(99.0).at[1, 200].set(99.0)
    assert np.asarray(sample(values, rows(4)).tokens).tolist() == [
        int(np.argmax(row)) for row in np.asarray(values)
    ]


def test_log_probabilities_are_those_of_the_unmodified_logits() -> None:
    values = logits(1)
    changes = {"temperature": jnp.full(4, 0.7), "top_k": jnp.full(4, 3, jnp.int32)}
    got = sample(values, rows(4, **changes))
    wanted = jax.nn.log_softmax(values)[jnp.arange(4), got.tokens]
    np.testing.assert_allclose(got.logprobs, wanted, rtol=1e-5, atol=1e-5)


def test_a_rank_counts_the_likelier_tokens() -> None:
    values = logits(4)
    targets = [
        int(np.argsort(-np.asarray(row))[place])
        for row, place in zip(values, (0, 1, 7, 299), strict=True)
    ]
    changes = {"target": jnp.asarray(targets, jnp.int32), "tops": jnp.ones(4, jnp.int32)}
    assert sample(values, rows(4, **changes)).ranks.tolist() == [1, 2, 8, 300]


def test_a_target_is_scored_instead_of_chosen() -> None:
    values = logits(2)
    got = sample(values, rows(4, target=jnp.asarray([5, -1, 0, 299], jnp.int32)))
    assert np.asarray(got.tokens)[[0, 2, 3]].tolist() == [5, 0, 299]
    np.testing.assert_allclose(
        got.logprobs[0], jax.nn.log_softmax(values)[0, 5], rtol=1e-5, atol=1e-5
    )


def test_top_k_draws_from_exactly_the_k_likeliest() -> None:
    values = logits(3)
    for top_k in (1, 2, 10, 299, 300, 5000):
        allowed = set(np.argsort(-np.asarray(values[0]))[:top_k].tolist())
        drawn = set(draws(values, 400, temperature=3.0, top_k=top_k).tolist())
        assert drawn <= allowed, top_k
        assert top_k > 10 or drawn == allowed, top_k


def test_top_p_draws_from_the_fewest_tokens_that_reach_p() -> None:
    values = logits(4)
    scaled = np.asarray(jax.nn.softmax(values[0] / 2.0))
    order = np.argsort(-scaled)
    for top_p in (0.05, 0.3, 0.9):
        needed = int((np.cumsum(scaled[order]) < top_p).sum()) + 1
        drawn = set(draws(values, 600, temperature=2.0, top_p=top_p).tolist())
        assert drawn <= set(order[:needed].tolist()), top_p
        assert needed > 8 or drawn == set(order[:needed].tolist()), top_p


def test_top_k_comes_before_top_p() -> None:
    values = jnp.full((1, VOCAB), -50.0).at[0, :4].set(jnp.log(jnp.asarray([4.0, 3.0, 2.0, 1.0])))
    # Of the two likeliest (4 : 3) the first alone holds 0.57 of what top-k left.
    drawn = draws(values, 50, temperature=1.0, top_k=2, top_p=0.5)
    assert set(drawn.tolist()) == {0}


def test_draws_follow_the_distribution() -> None:
    values = (
        jnp.full((1, VOCAB), -50.0)
        .at[0, jnp.asarray([3, 130, 299])]
        .set(jnp.log(jnp.asarray([0.5, 0.3, 0.2])))
    )
    counts = np.bincount(draws(values, 4000, temperature=1.0), minlength=VOCAB) / 4000
    np.testing.assert_allclose(counts[[3, 130, 299]], [0.5, 0.3, 0.2], atol=0.04)
    assert counts[[3, 130, 299]].sum() == pytest.approx(1.0)


def test_draws_follow_the_distribution_over_seeds_too() -> None:
    weights = np.asarray([0.4, 0.25, 0.2, 0.1, 0.04, 0.01])
    values = jnp.full((1, VOCAB), -jnp.inf).at[0, 40:46].set(jnp.log(jnp.asarray(weights)))
    seeds = np.stack([np.zeros(20_000), np.arange(20_000)], 1).astype(np.uint32)
    for words in (seeds, seeds[:, ::-1]):
        many = jnp.broadcast_to(values, (len(words), VOCAB))
        settings_ = {"seed": jnp.asarray(words), "position": jnp.full(len(words), 7)}
        got = sample(many, rows(len(words), temperature=jnp.ones(len(words)), **settings_))
        counts = np.bincount(np.asarray(got.tokens), minlength=VOCAB)[40:46]
        chi_square = ((counts - 20_000 * weights) ** 2 / (20_000 * weights)).sum()
        assert chi_square < 20.5  # 5 degrees of freedom: exceeded once in a thousand


def test_successive_draws_are_independent() -> None:
    values = jnp.full((1, VOCAB), -jnp.inf).at[0, :4].set(0.0)
    drawn = draws(values, 20_000, temperature=1.0)
    for lag in (1, 2, 3, 16):
        pairs = np.bincount(4 * drawn[:-lag] + drawn[lag:], minlength=16)
        expected = (len(drawn) - lag) / 16
        assert ((pairs - expected) ** 2 / expected).sum() < 37.7  # 15 degrees: once in a thousand


def test_rare_tokens_are_drawn_as_rarely_as_they_should() -> None:
    """All tokens but one weigh 1e-5 each: their sum must win 0.3 % of the draws."""
    values = jnp.full((1, VOCAB), float(np.log(1e-5))).at[0, 150].set(0.0)
    others = (draws(values, 60_000, temperature=1.0) != 150).mean()
    assert others == pytest.approx(299e-5 / (1 + 299e-5), rel=0.25)


def test_rounding_of_the_logits_changes_a_draw_only_near_a_tie() -> None:
    """Two batches differ by such rounding; inverting the distribution flips several times as many.

    A draw can flip only if the two first of the race are within 2e-3 of each other, which happens
    to at most 0.2 % of them.
    """
    count = 5000
    values = np.random.default_rng(8).normal(size=VOCAB) * 2
    noise = np.random.default_rng(9).uniform(-1e-3, 1e-3, size=(count, VOCAB))
    exact = np.broadcast_to(values, (count, VOCAB))
    settings_ = rows(count, temperature=jnp.ones(count))
    one, other = (
        np.asarray(sample(jnp.asarray(logits_, jnp.float32), settings_).tokens)
        for logits_ in (exact, exact + noise)
    )
    assert (one != other).mean() <= 2e-3


def test_a_row_with_one_possible_token_draws_it_at_every_position() -> None:
    values = jnp.full((1, VOCAB), -jnp.inf).at[0, 250].set(-3.0)
    assert set(draws(values, 5000, temperature=2.0).tolist()) == {250}


def test_the_same_seed_and_position_draw_the_same_token_in_any_batch() -> None:
    values = logits(5)
    seeds = np.arange(8, dtype=np.uint32).reshape(4, 2)
    settings_ = {"temperature": jnp.full(4, 1.5), "seed": jnp.asarray(seeds)}
    together = np.asarray(sample(values, rows(4, **settings_)).tokens)
    for row in range(4):
        place = {"seed": seeds[row], "position": np.int32(row)}
        same = draws(values[row:], 64, temperature=1.5, **place)
        assert set(same.tolist()) == {together[row]}


def test_greedy_rows_stay_greedy_beside_sampled_ones() -> None:
    values = logits(6)
    got = sample(values, rows(4, temperature=jnp.asarray([0.0, 5.0, 0.0, 5.0])))
    greedy = np.asarray(values).argmax(-1)
    assert np.asarray(got.tokens)[[0, 2]].tolist() == greedy[[0, 2]].tolist()


def test_the_likeliest_tokens_come_best_first_when_wanted() -> None:
    values = logits(7)
    got = sample(values, rows(4, tops=jnp.full(4, 5, jnp.int32)))
    order = np.argsort(-np.asarray(values[0]))[:5]
    assert np.asarray(got.top_tokens)[0, :5].tolist() == order.tolist()
    wanted = np.asarray(jax.nn.log_softmax(values[0]))[order]
    np.testing.assert_allclose(got.top_logprobs[0, :5], wanted, rtol=1e-5, atol=1e-5)


def test_the_likeliest_of_a_large_vocabulary_are_a_sorts_and_of_equals_the_first() -> None:
    for highest in (2, 9, 10**6):  # few different numbers: most are equals
        rng = np.random.default_rng(highest)
        values = jnp.asarray(rng.integers(0, highest, (3, 50 * 128 + 7)), jnp.float32)
        values = values.at[1, 12:].set(-jnp.inf)  # fewer may be chosen than are asked for
        got = sample(values, rows(3, tops=jnp.full(3, 20, jnp.int32)))
        logprobs, tokens = jax.lax.top_k(jax.nn.log_softmax(values), 20)
        np.testing.assert_array_equal(got.top_tokens, tokens)
        np.testing.assert_allclose(got.top_logprobs, logprobs, rtol=1e-5, atol=1e-5)


@examples(
    st.integers(0, 10**6),
    st.floats(0.01, 1.0),
    st.integers(0, VOCAB),
    st.floats(0.05, 4.0),
    few=10,
    many=30,
)
def test_no_draw_ever_leaves_the_vocabulary_or_its_cut(
    seed: int, top_p: float, top_k: int, temperature: float
) -> None:
    values = logits(seed)
    drawn = draws(values, 64, temperature=temperature, top_p=top_p, top_k=top_k)
    assert drawn.min() >= 0
    assert drawn.max() < VOCAB
    if top_k:
        floor = np.sort(np.asarray(values[0]))[-top_k]
        assert np.asarray(values[0])[drawn].min() >= floor
