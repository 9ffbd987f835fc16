"""Attention among the pieces of images, a few queries after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.models.media.tower_layer import QUERIES, attend


@pytest.mark.parametrize(
    "dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("pieces", [QUERIES, 2 * QUERIES + 5])
def test_queries_in_parts_see_what_all_at_once_see(pieces: int, dtype: jnp.dtype) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (2, pieces, 3, 8), jnp.float32).astype(dtype) for key in keys)
    lengths = jnp.asarray([pieces, pieces - 70])
    scores = jnp.einsum("schq,sphq->shcp", q, k, preferred_element_type=jnp.float32) * 8**-0.5
    there = jnp.arange(pieces)[None] < lengths[:, None]
    weights = jax.nn.softmax(jnp.where(there[:, None, None], scores, -jnp.inf), -1).astype(dtype)
    wanted = jnp.einsum("shcp,sphq->schq", weights, v, preferred_element_type=jnp.float32)
    found = jax.jit(attend)(q, k, v, lengths)
    assert found.dtype == jnp.float32
    near = 1e-5 if dtype == jnp.float32 else 1e-2
    assert np.allclose(found, wanted, atol=near)
