"""Positions that are added to the tokens' vectors, and angles in turns."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.models.layers.positions import (
    LearnedPositions,
    Sinusoids,
    cosine,
    rotary_angles,
    sine,
)
from model_server.models.weights.weight import WeightForm


def test_sinusoids_are_sines_and_then_cosines() -> None:
    table = np.asarray(Sinusoids(4)(jnp.asarray([0, 1])))
    np.testing.assert_allclose(table[0], [0, 0, 1, 1], atol=1e-6)
    np.testing.assert_allclose(
        table[1], [np.sin(1), np.sin(1e-4), np.cos(1), np.cos(1e-4)], atol=1e-6
    )


def test_a_learned_position_is_a_row_of_the_table() -> None:
    learned = LearnedPositions(3, 2, form=WeightForm(dtype=jnp.float32))
    learned.table[...] = jnp.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found = np.asarray(learned(jnp.asarray([2, 0])))
    np.testing.assert_array_equal(found, [[5, 6], [1, 2]])


def test_a_sine_and_a_cosine_are_right_all_around_the_circle() -> None:
    turns = np.linspace(0, 2**32 - 1, 100_001).astype(np.uint32)
    angles = turns.astype(np.float64) * (2 * math.pi / 2**32)
    np.testing.assert_allclose(sine(jnp.asarray(turns)), np.sin(angles), atol=3e-7)
    np.testing.assert_allclose(cosine(jnp.asarray(turns)), np.cos(angles), atol=3e-7)


def test_quarters_of_a_turn_are_exact() -> None:
    quarters = jnp.arange(4, dtype=jnp.uint32) << 30
    assert np.round(np.asarray(sine(quarters)), 6).tolist() == [0, 1, 0, -1]
    assert np.round(np.asarray(cosine(quarters)), 6).tolist() == [1, 0, -1, 0]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**20), st.floats(1e-7, 1.0))
def test_a_far_position_is_off_by_no_more_than_its_share_of_a_turn(
    position: int, frequency: float
) -> None:
    turns = rotary_angles(jnp.asarray([position]), np.asarray([frequency]))
    allowed = position * 2 * math.pi / 2**33 + 3e-7
    assert abs(float(sine(turns)[0, 0]) - math.sin(position * frequency)) <= allowed
    assert abs(float(cosine(turns)[0, 0]) - math.cos(position * frequency)) <= allowed
