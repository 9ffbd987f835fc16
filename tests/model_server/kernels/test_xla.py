"""The plain-XLA kernel against the reference, over a grid of shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.kernels import reference, xla
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import CacheShape, LayerPages, allocate, write
from model_server.kernels.whole import WholeInputs

# sequences, queries each, heads, kv heads, key size, value size, page size, softcap, window, dtype
GRID = [
    (5, 1, 4, 4, 10, 10, 8, None, 13, "float32"),
    (3, 8, 8, 2, 16, 16, 4, 50.0, 1, "int8"),
    (2, 32, 6, 1, 6, 6, 64, None, 64, "float32"),
    (3, 4, 4, 1, 12, 7, 8, 50.0, 9, "float8_e4m3fn"),
    *(
        pytest.param(*more, marks=pytest.mark.nightly)
        for more in (
            (1, 1, 9, 3, 64, 64, 16, None, None, "float32"),
            (5, 1, 4, 4, 10, 10, 8, None, None, "float32"),
            (3, 8, 8, 2, 16, 16, 4, 50.0, None, "float32"),
            (3, 8, 8, 2, 16, 16, 4, 50.0, 4, "float32"),
            (2, 32, 6, 1, 6, 6, 64, None, None, "int8"),
            (2, 32, 6, 1, 6, 6, 64, None, 1000, "float32"),
            (3, 4, 4, 1, 12, 7, 8, None, None, "float32"),
            (3, 4, 4, 1, 12, 7, 8, None, 9, "int8"),
        )
    ),
]


KERNELS = (reference.paged_attention, xla.paged_attention)


def run(kernel: Callable[..., jax.Array], *arguments: Any, **options: Any) -> jax.Array:
    """The kernel as one program."""
    return jax.jit(partial(kernel, **options))(*arguments)


@pytest.mark.parametrize(("n", "c", "h", "kv", "d", "w", "page", "cap", "window", "dtype"), GRID)
def test_equals_the_reference(
    n: int,
    c: int,
    h: int,
    kv: int,
    d: int,
    w: int,
    page: int,
    cap: float | None,
    window: int | None,
    dtype: str,
) -> None:
    rng = np.random.default_rng(n * 100 + h)
    per_sequence = 5
    pages = n * per_sequence
    q = jnp.asarray(rng.normal(size=(n, c, h, d)), jnp.float32)
    cache = CacheShape(layers=1, kv_heads=kv, key_dim=d, value_dim=w)
    everywhere = np.arange((pages + 1) * page)
    layer = jax.jit(write)(
        allocate(cache, pages, page, jnp.dtype(dtype))[0],
        jnp.asarray(rng.normal(size=(len(everywhere), kv, d)), jnp.float32),
        jnp.asarray(rng.normal(size=(len(everywhere), kv, w)), jnp.float32),
        jnp.asarray(everywhere // page),
        jnp.asarray(everywhere % page),
    )
    tables = jnp.asarray(1 + rng.permutation(pages).reshape(n, per_sequence), jnp.int32)
    ends = rng.integers(c, per_sequence * page + 1, size=n) if per_sequence * page >= c else None
    assert ends is not None
    limits = jnp.asarray(ends[:, None] - c + 1 + np.arange(c)[None], jnp.int32)
    options = {"scale": d**-0.5, "softcap": cap, "window": window}
    wanted, got = (run(kernel, q, layer, tables, limits, **options) for kernel in KERNELS)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("window", [None, 5])
def test_a_sink_is_a_token_whose_value_is_zero(window: int | None) -> None:
    """It is seen through any window."""
    rng = np.random.default_rng(3)
    keys, values = rng.normal(size=(2, 3, 13, 8)).astype(np.float32)
    q, sinks = rng.normal(size=(13, 6, 8)), rng.normal(size=6)
    wanted = np.zeros((13, 6, 8))
    for token, head in itertools.product(range(13), range(6)):
        seen = slice(0 if window is None else max(0, token + 1 - window), token + 1)
        scores = np.append(keys[head // 2, seen] @ q[token, head], sinks[head])
        weights = np.exp(scores - scores.max())
        wanted[token, head] = weights[:-1] / weights.sum() @ values[head // 2, seen]
    at = jnp.arange(13, dtype=jnp.int32)
    none = jnp.zeros(1, jnp.int32)  # a decode row of padding before the prompt
    batch = PagedBatch(
        pages=jnp.append(none, at // 8 + 1),
        offsets=jnp.append(none, at % 8),
        decode_tables=jnp.zeros((1, 2), jnp.int32),
        decode_limits=none[None],
        block_tables=jnp.asarray([[1, 2]], jnp.int32),
        block_limits=at[None] + 1,
        kernel=reference.KERNEL,
    )
    cache = CacheShape(layers=1, kv_heads=3, key_dim=8, value_dim=8)
    new = [np.asarray(each, np.float32) for each in (q, *np.stack([keys, values]).swapaxes(1, 2))]
    options = {"scale": 1.0, "window": window, "sinks": jnp.asarray(sinks, jnp.float32)}
    for kernel, before in ((reference.KERNEL, 1), (xla.KERNEL, 1), (WholeInputs(), 0)):
        layer = allocate(cache, 2, 8, jnp.dtype("float32"))[0]
        tokens = [jnp.asarray(np.pad(each, ((before, 0), (0, 0), (0, 0)))) for each in new]
        step = jax.jit(lambda batch, layer, *tokens: batch.attend(layer, *tokens, **options))
        got, _ = step(replace(batch, kernel=kernel), layer, *tokens)
        np.testing.assert_allclose(got[before:], wanted, rtol=2e-5, atol=2e-5)


def test_rows_that_see_nothing_give_zeros() -> None:
    q = jnp.ones((2, 1, 2, 4))
    layer = LayerPages(jnp.ones((3, 1, 4, 8)), jnp.ones((3, 1, 8, 4)))
    tables = jnp.asarray([[1], [0]], jnp.int32)
    limits = jnp.asarray([[3], [0]], jnp.int32)
    for kernel in KERNELS:
        out = np.asarray(run(kernel, q, layer, tables, limits, scale=1.0))
        assert np.allclose(out[0], 1.0)
        assert not out[1].any()


def test_what_lies_beyond_the_limit_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.normal(size=(1, 1, 2, 4)), jnp.float32)
    keys = rng.normal(size=(3, 1, 4, 8)).astype(np.float32)
    values = rng.normal(size=(3, 1, 8, 4)).astype(np.float32)
    tables, limits = jnp.asarray([[1, 2]], jnp.int32), jnp.asarray([[11]], jnp.int32)

    def attended() -> np.ndarray:
        layer = LayerPages(jnp.asarray(keys), jnp.asarray(values))
        return np.asarray(run(xla.paged_attention, q, layer, tables, limits, scale=1.0))

    before = attended()
    for page, offset in itertools.product([2], range(3, 8)):
        keys[page, :, :, offset] = 1e3
        values[page, :, offset] = 1e3
    np.testing.assert_array_equal(before, attended())


def test_a_window_hides_what_lies_before_it() -> None:
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.normal(size=(1, 1, 2, 4)), jnp.float32)
    keys = rng.normal(size=(3, 1, 4, 8)).astype(np.float32)
    values = rng.normal(size=(3, 1, 8, 4)).astype(np.float32)
    tables, limits = jnp.asarray([[1, 2]], jnp.int32), jnp.asarray([[14]], jnp.int32)

    def attended(window: int) -> np.ndarray:
        layer = LayerPages(jnp.asarray(keys), jnp.asarray(values))
        options = {"scale": 1.0, "window": window}
        return np.asarray(run(xla.paged_attention, q, layer, tables, limits, **options))

    before = attended(4)
    keys[2, :, :, 1] = values[2, :, 1] = 1e3  # position 9; the window begins at 10
    np.testing.assert_array_equal(attended(4), before)
    assert not np.allclose(attended(5), before)


def test_int8_pages_hold_numbers_to_half_a_step() -> None:
    rng = np.random.default_rng(3)
    numbers = (rng.normal(size=(8, 2, 16)) * 10.0).astype(np.float32)
    cache = CacheShape(layers=1, kv_heads=2, key_dim=16, value_dim=16)
    at = jnp.arange(8)
    layer = write(
        allocate(cache, 1, 8, jnp.dtype("int8"))[0],
        jnp.asarray(numbers),
        jnp.asarray(numbers),
        jnp.ones(8, jnp.int32),
        at,
    )
    assert layer.keys.dtype == layer.values.dtype == jnp.int8
    assert layer.key_scales is not None
    keys = np.asarray(layer.keys[1], np.float32) * np.asarray(layer.key_scales[1])[:, None]
    allowed = np.abs(numbers).max(-1) / 127 * 0.501
    assert (np.abs(keys.transpose(2, 0, 1) - numbers) <= allowed[..., None]).all()
    assert sum(cache.bytes_by_layer(8, jnp.dtype("int8"))) == 8 * 2 * (32 + 8)


def test_float8_pages_hold_numbers_of_any_size_to_a_sixteenth() -> None:
    numbers = np.geomspace(1e-3, 1e6, 2 * 16).reshape(1, 2, 16).astype(np.float32)
    cache = CacheShape(layers=1, kv_heads=2, key_dim=16, value_dim=16)
    empty = allocate(cache, 1, 8, jnp.dtype("float8_e4m3fn"))[0]
    given, one = jnp.asarray(numbers), jnp.ones(1, jnp.int32)
    layer = write(empty, given, given, one, one)
    assert layer.values is not None
    assert layer.value_scales is not None
    held = np.asarray(layer.values[1, :, 1], np.float32) * np.asarray(layer.value_scales[1, :, 1:2])
    largest = numbers[0].max(-1, keepdims=True)
    np.testing.assert_allclose(held, numbers[0], rtol=1 / 16, atol=float(largest.max()) / 448 / 512)
    assert np.isfinite(held).all()


@pytest.mark.parametrize(
    ("dtype", "window"),
    [
        ("float32", 5),
        ("int8", None),
        pytest.param("float32", None, marks=pytest.mark.nightly),
        pytest.param("int8", 5, marks=pytest.mark.nightly),
    ],
)
def test_keys_may_be_the_values_too(dtype: str, window: int | None) -> None:
    """As with values that are stored beside the keys and are the same."""
    rng = np.random.default_rng(3)
    tokens = jnp.asarray(rng.normal(size=(24, 1, 6)), jnp.float32)
    at = np.arange(24)

    def stored(value_dim: int) -> LayerPages:
        cache = CacheShape(layers=1, kv_heads=1, key_dim=6, value_dim=value_dim)
        empty = allocate(cache, 2, 8, jnp.dtype(dtype))[0]
        values = tokens if value_dim else None
        return write(empty, tokens, values, jnp.asarray(at // 8), jnp.asarray(at % 8))

    q = jnp.asarray(rng.normal(size=(1, 3, 4, 6)), jnp.float32)
    tables, limits = jnp.asarray([[2, 1]], jnp.int32), jnp.asarray([[0, 9, 15]], jnp.int32)
    options = {"scale": 0.5, "window": window}
    wanted = run(reference.paged_attention, q, stored(6), tables, limits, **options)
    for kernel in KERNELS:
        found = run(kernel, q, stored(0), tables, limits, **options)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
