"""Routes worked out by hand: scores are logarithms, so that probabilities are simple fractions."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from model_server.models.config_keys import ConfigKeys
from model_server.models.families import mixtral
from model_server.models.layers.routing import (
    GroupedSigmoidChoice,
    GroupedSoftmaxChoice,
    SoftmaxChoice,
    SparseMixerChoice,
    checked_count,
)
from sax.errors import CheckpointError


def logits(*probabilities: float) -> jnp.ndarray:
    """Scores of one token whose sigmoids are these."""
    found = np.asarray(probabilities)
    return jnp.asarray(np.log(found / (1 - found)))[None]


def grouped(**changes: object) -> GroupedSigmoidChoice:
    plain = {"count": 2, "groups": 1, "kept": 1, "normalised": False, "scale": 1.0}
    return GroupedSigmoidChoice(**(plain | changes))  # pyright: ignore[reportArgumentType]


def test_the_most_probable_experts_are_chosen_with_their_probabilities() -> None:
    experts, weights = SoftmaxChoice(2, normalised=False)(jnp.log(jnp.asarray([[1.0, 5, 2]])), None)
    assert experts.tolist() == [[1, 2]]
    np.testing.assert_allclose(weights, [[5 / 8, 2 / 8]], rtol=1e-6)


def test_normalised_weights_add_up_to_one() -> None:
    _, weights = SoftmaxChoice(2, normalised=True)(jnp.log(jnp.asarray([[1.0, 5, 2]])), None)
    np.testing.assert_allclose(weights, [[5 / 7, 2 / 7]], rtol=1e-6)


def test_of_equal_experts_the_first_is_chosen() -> None:
    experts, _ = SoftmaxChoice(2, normalised=True)(jnp.zeros((1, 4)), None)
    assert experts.tolist() == [[0, 1]]


def test_a_bias_moves_the_choice_and_not_the_weights() -> None:
    scores, bias = logits(0.9, 0.5, 0.2), jnp.asarray([0.0, 0.0, 0.4])
    experts, weights = grouped()(scores, bias)
    assert experts.tolist() == [[0, 2]]
    np.testing.assert_allclose(weights, [[0.9, 0.2]], rtol=1e-6)


def test_sigmoid_weights_are_normalised_and_then_scaled() -> None:
    _, weights = grouped(normalised=True, scale=2.5)(logits(0.6, 0.2, 0.1), None)
    np.testing.assert_allclose(weights, [[0.75 * 2.5, 0.25 * 2.5]], rtol=1e-6)


def test_a_group_is_as_good_as_its_two_best_experts_together() -> None:
    """The best expert is in the first group, the best pair in the second."""
    scores = logits(0.9, 0.1, 0.1, 0.6, 0.7, 0.1)
    experts, _ = grouped(groups=2, kept=1)(scores, None)
    assert experts.tolist() == [[4, 3]]


def test_experts_outside_the_kept_groups_are_out_of_reach_even_if_negative_ones_are_left() -> None:
    scores, bias = logits(0.9, 0.9, 0.1, 0.1), jnp.asarray([0.0, 0.0, -9.0, -9.0])
    experts, weights = grouped(count=3, groups=2, kept=2)(scores, bias)
    assert experts.tolist() == [[0, 1, 2]]
    experts, _ = grouped(groups=2, kept=1)(scores, -bias[::-1] - 20)
    assert set(experts[0].tolist()) == {0, 1}
    np.testing.assert_allclose(weights, [[0.9, 0.9, 0.1]], rtol=1e-5)


def test_more_routes_than_experts_are_refused_by_name() -> None:
    keys = ConfigKeys({"num_experts_per_tok": 9}, mixtral.KEYS)
    with pytest.raises(CheckpointError, match=r"num_experts_per_tok = 9, more than the 8"):
        checked_count(keys, 8)


def test_the_groups_with_the_likeliest_experts_are_kept() -> None:
    """The second group has more probability, and no expert as likely as the first group's best."""
    scores = jnp.log(jnp.asarray([[8.0, 1.0, 6.0, 5.0]]))
    choice = GroupedSoftmaxChoice(2, groups=2, kept=1, scale=2.0)
    experts, weights = choice(scores, None)
    assert experts.tolist() == [[0, 1]]
    np.testing.assert_allclose(weights, [[2 * 8 / 20, 2 * 1 / 20]], rtol=1e-6)


def test_sparse_mixing_weighs_each_of_two_among_those_within_its_reach() -> None:
    """Of 2, 1.9, 1.5 and 1, with a reach of a fifth: 2 among 2 and 1.9; 1.9 among 1.9 alone."""
    experts, weights = SparseMixerChoice(0.1)(jnp.asarray([[1.0, 2.0, 1.5, 1.9]]), None)
    assert experts.tolist() == [[1, 3]]
    np.testing.assert_allclose(weights, [[1 / (1 + np.exp(-0.1)), 1.0]], rtol=1e-6)
