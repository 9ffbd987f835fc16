"""Positions that are added to the tokens' vectors."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from model_server.models.layers.positions import LearnedPositions, Sinusoids
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
