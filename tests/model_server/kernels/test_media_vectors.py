"""Vectors of media among a batch's tokens."""

import jax.numpy as jnp
import numpy as np

from model_server.kernels.media_vectors import vectors_of

TOKENS = jnp.asarray([5, -1, -3, 7])
BUFFER = jnp.arange(3 * 6, dtype=jnp.float32).reshape(3, 6)


def test_a_vector_takes_the_place_of_a_token_below_zero():
    media = vectors_of(TOKENS, BUFFER, levels=2)
    x = jnp.full((4, 2), -9.0)
    assert np.asarray(media.placed(x)).tolist() == [[-9, -9], [0, 1], [12, 13], [-9, -9]]


def test_levels_are_added_at_media_alone():
    media = vectors_of(TOKENS, BUFFER, levels=2)
    assert np.asarray(media.level(0)).tolist() == [[0, 0], [2, 3], [14, 15], [0, 0]]
    assert np.asarray(media.level(1)).tolist() == [[0, 0], [4, 5], [16, 17], [0, 0]]
