"""Vectors of two inputs, of two tokens and of three, worked out by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from model_server.models.layers.embedder import pooled

HIDDEN = jnp.asarray([[[3.0, 0.0], [1.0, 8.0], [90.0, 90.0]], [[0.0, 5.0], [6.0, 5.0], [3.0, 2.0]]])
LENGTHS = jnp.asarray([2, 3])


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("cls", [[3, 0], [0, 5]]),
        ("mean", [[2, 4], [3, 4]]),
        ("max", [[3, 8], [6, 5]]),
    ],
)
def test_only_the_tokens_of_an_input_count(pooling: str, expected: list[list[float]]) -> None:
    vectors = pooled(HIDDEN, LENGTHS, pooling=pooling, normalise=False)
    np.testing.assert_allclose(vectors, expected)


def test_a_normalised_vector_has_length_one() -> None:
    vectors = pooled(HIDDEN, LENGTHS, pooling="mean", normalise=True)
    np.testing.assert_allclose(vectors[1], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, rtol=1e-6)


def test_a_vector_of_zeros_stays_one() -> None:
    vectors = pooled(jnp.zeros((1, 2, 4)), jnp.asarray([2]), pooling="mean", normalise=True)
    np.testing.assert_array_equal(vectors, np.zeros((1, 4)))
