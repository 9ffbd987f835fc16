"""Norms, gates and heads of single rows, against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.kernels.cpu.rows import GATES, HeadNorm, HeadRotation, gated, heads, rms_norm
from model_server.models.layers.rope import Rotary
from tests.model_server.kernels.cpu.instruction_sets import instructions

__all__ = ["instructions"]

SIZES = [(1, 16), (3, 17), (40, 576), (9, 1), (200, 100), (0, 32)]
FUNCTIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def all_live(rows: int) -> jax.Array:
    return jnp.arange(rows, dtype=jnp.int32)


def normed(x: np.ndarray, scale: np.ndarray, more: float, epsilon: float = 1e-5) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * (scale + more)


@pytest.mark.parametrize("more", [0.0, 1.0])
@pytest.mark.parametrize(("rows", "size"), SIZES)
def test_sums_are_normed(rows: int, size: int, more: float, instructions: str) -> None:
    x, y, scale = numbers(rows, size), numbers(rows, size)[::-1], numbers(size)
    for added in (None, y.copy()):
        got_sum, got = rms_norm(
            jnp.asarray(x), added, all_live(rows), scale, epsilon=1e-5, more=more
        )
        whole = x if added is None else x + added
        np.testing.assert_allclose(got_sum, whole, rtol=1e-6)
        np.testing.assert_allclose(got, normed(whole, scale, more), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(("rows", "size"), SIZES)
def test_gates_multiply_what_they_let_through(
    rows: int, size: int, gate: str, instructions: str
) -> None:
    both = 4 * numbers(rows, 2 * size)
    got = gated(jnp.asarray(both), all_live(rows), gate)
    exact = both.astype(np.float64)
    wanted = FUNCTIONS[gate](exact[:, :size]) * exact[:, size:]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_gates_of_large_numbers_are_open_or_shut(gate: str, instructions: str) -> None:
    both = jnp.asarray([[1e4, -1e4, 90.0, -90.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]], jnp.float32)
    got = gated(both, all_live(1), gate)
    np.testing.assert_allclose(got, [[1e4, 0.0, 90.0, 0.0, 0.0]], atol=1e-30)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("query_heads", "kv_heads", "size", "half"),
    [(9, 3, 64, 32), (4, 4, 80, 10), (2, 1, 6, 3), (1, 1, 256, 128), (3, 1, 16, 0)],
)
def test_heads_are_divided_normed_and_rotated(
    query_heads: int, kv_heads: int, size: int, half: int, interleaved: bool, instructions: str
) -> None:
    rows = 11
    joined = numbers(rows, (query_heads + 2 * kv_heads) * size)
    angles = numbers(rows, 1, half)
    rotation = HeadRotation(jnp.cos(angles), jnp.sin(angles), interleaved) if half else None
    norm = HeadNorm(jnp.asarray(numbers(size)), jnp.asarray(numbers(size)[::-1]), 1e-6, 1.0)
    parts = np.split(joined, [query_heads * size, (query_heads + kv_heads) * size], axis=-1)
    for own in (None, norm):
        got = heads(jnp.asarray(joined), all_live(rows), size, kv_heads, own, rotation)
        for index, (part, made) in enumerate(zip(parts, got, strict=True)):
            wanted = part.reshape(rows, -1, size)
            if own is not None and index < 2:
                wanted = normed(wanted, np.asarray(own[index]), own.more, own.epsilon)
            if rotation is not None and index < 2:
                wanted = Rotary(rotation.cos, rotation.sin, interleaved)(jnp.asarray(wanted))
            np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=1e-5)


def test_rows_that_are_not_live_get_zeros(instructions: str) -> None:
    rows, size = 70, 48
    live = jnp.asarray([1, 5, 69, *[-1] * 67], jnp.int32)
    there = np.zeros(rows, bool)
    there[[1, 5, 69]] = True
    bad = numbers(rows, 3 * size)
    bad[~there] = np.nan
    made = [
        *rms_norm(jnp.asarray(bad), bad, live, numbers(3 * size), epsilon=1e-5),
        gated(jnp.asarray(bad[:, : 2 * size]), live, "silu"),
        *heads(jnp.asarray(bad), live, size, 1, None, None),
    ]
    for each in made:
        np.testing.assert_array_equal(np.asarray(each)[~there], 0.0)
        assert np.all(np.any(np.asarray(each)[there].reshape(3, -1) != 0, axis=1))


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, live = jnp.zeros((2, 16)), all_live(2)
    with pytest.raises(jax.errors.JaxRuntimeError, match="norm: the shapes do not fit"):
        rms_norm(x, None, live, jnp.zeros(15), epsilon=1e-5)
    rotation = HeadRotation(jnp.zeros((2, 1, 9)), jnp.zeros((2, 1, 9)), interleaved=False)
    with pytest.raises(jax.errors.JaxRuntimeError, match="heads: the shapes do not fit"):
        heads(jnp.zeros((2, 48)), live, 16, 1, None, rotation)
