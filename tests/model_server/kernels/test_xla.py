"""The plain-XLA kernel against the reference, over a grid of shapes."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from model_server.kernels import reference, xla

# sequences, queries each, heads, kv heads, head size, page size, softcap
GRID = [
    (1, 1, 9, 3, 64, 16, None),
    (5, 1, 4, 4, 10, 8, None),
    (3, 8, 8, 2, 16, 4, 50.0),
    (2, 32, 6, 1, 6, 64, None),
]


@pytest.mark.parametrize(("n", "c", "h", "kv", "d", "page", "cap"), GRID)
def test_equals_the_reference(
    n: int, c: int, h: int, kv: int, d: int, page: int, cap: float | None
) -> None:
    rng = np.random.default_rng(n * 100 + h)
    per_sequence = 5
    pages = n * per_sequence
    q = jnp.asarray(rng.normal(size=(n, c, h, d)), jnp.float32)
    keys = jnp.asarray(rng.normal(size=(pages + 1, kv, d, page)), jnp.float32)
    values = jnp.asarray(rng.normal(size=(pages + 1, kv, page, d)), jnp.float32)
    tables = jnp.asarray(1 + rng.permutation(pages).reshape(n, per_sequence), jnp.int32)
    ends = rng.integers(c, per_sequence * page + 1, size=n) if per_sequence * page >= c else None
    assert ends is not None
    limits = jnp.asarray(ends[:, None] - c + 1 + np.arange(c)[None], jnp.int32)
    options = {"scale": d**-0.5, "softcap": cap}
    wanted = reference.paged_attention(q, keys, values, tables, limits, **options)
    got = xla.paged_attention(q, keys, values, tables, limits, **options)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def test_rows_that_see_nothing_give_zeros() -> None:
    q = jnp.ones((2, 1, 2, 4))
    keys, values = jnp.ones((3, 1, 4, 8)), jnp.ones((3, 1, 8, 4))
    tables = jnp.asarray([[1], [0]], jnp.int32)
    limits = jnp.asarray([[3], [0]], jnp.int32)
    for kernel in (reference.paged_attention, xla.paged_attention):
        out = np.asarray(kernel(q, keys, values, tables, limits, scale=1.0))
        assert np.allclose(out[0], 1.0)
        assert not out[1].any()


def test_what_lies_beyond_the_limit_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.normal(size=(1, 1, 2, 4)), jnp.float32)
    keys = rng.normal(size=(3, 1, 4, 8)).astype(np.float32)
    values = rng.normal(size=(3, 1, 8, 4)).astype(np.float32)
    tables, limits = jnp.asarray([[1, 2]], jnp.int32), jnp.asarray([[11]], jnp.int32)
    before = xla.paged_attention(
        q, jnp.asarray(keys), jnp.asarray(values), tables, limits, scale=1.0
    )
    for page, offset in itertools.product([2], range(3, 8)):
        keys[page, :, :, offset] = 1e3
        values[page, :, offset] = 1e3
    after = xla.paged_attention(
        q, jnp.asarray(keys), jnp.asarray(values), tables, limits, scale=1.0
    )
    np.testing.assert_array_equal(before, after)
