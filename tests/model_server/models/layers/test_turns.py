"""Angles in turns against numpy's double precision."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.models.layers.positions import cosine, rotary_angles, sine


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
