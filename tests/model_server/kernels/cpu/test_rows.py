"""Norms, gates and heads of single rows, against numpy."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.kernels.cpu.rows import GATES, HeadNorm, HeadRotation, gated, heads, rms_norm
from model_server.models.layers.rope import Rotary
from tests.each_case import Failures
from tests.model_server.kernels.cpu.instruction_sets import InstructionSets, instruction_sets

__all__ = ["instruction_sets"]

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


def test_sums_are_normed(instruction_sets: InstructionSets) -> None:
    failures = Failures()
    for (rows, size), more, adds in itertools.product(SIZES, [0.0, 1.0], [False, True]):
        x, scale = numbers(rows, size), numbers(size)
        added = x[::-1].copy() if adds else None
        whole = x if added is None else x + added
        for instructions in instruction_sets():
            with failures.of(rows, size, more, adds, instructions):
                got_sum, got = rms_norm(
                    jnp.asarray(x), added, all_live(rows), scale, epsilon=1e-5, more=more
                )
                np.testing.assert_allclose(got_sum, whole, rtol=1e-6)
                np.testing.assert_allclose(got, normed(whole, scale, more), rtol=2e-5, atol=1e-6)
    assert not failures, str(failures)


def test_gates_multiply_what_they_let_through(instruction_sets: InstructionSets) -> None:
    failures = Failures()
    for (rows, size), gate in itertools.product(SIZES, GATES):
        both = 4 * numbers(rows, 2 * size)
        exact = both.astype(np.float64)
        wanted = FUNCTIONS[gate](exact[:, :size]) * exact[:, size:]
        for instructions in instruction_sets():
            with failures.of(rows, size, gate, instructions):
                got = gated(jnp.asarray(both), all_live(rows), gate)
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert not failures, str(failures)


def test_gates_of_large_numbers_are_open_or_shut(instruction_sets: InstructionSets) -> None:
    both = jnp.asarray([[1e4, -1e4, 90.0, -90.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]], jnp.float32)
    failures = Failures()
    for instructions in instruction_sets():
        for gate in ("silu", "gelu_tanh"):
            with failures.of(gate, instructions):
                got = gated(both, all_live(1), gate)
                np.testing.assert_allclose(got, [[1e4, 0.0, 90.0, 0.0, 0.0]], atol=1e-30)
    assert not failures, str(failures)


def test_heads_are_divided_normed_and_rotated(instruction_sets: InstructionSets) -> None:
    failures = Failures()
    # query heads, KV heads, size, half of what is rotated of it
    shapes = [(9, 3, 64, 32), (4, 4, 80, 10), (2, 1, 6, 3), (1, 1, 256, 128), (3, 1, 16, 0)]
    for shape, interleaved in itertools.product(shapes, [False, True]):
        for instructions in instruction_sets():
            with failures.of(*shape, interleaved, instructions):
                compare_heads(*shape, interleaved)
    assert not failures, str(failures)


def compare_heads(query_heads: int, kv_heads: int, size: int, half: int, interleaved: bool) -> None:
    """With a norm of queries and keys, and without one."""
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


def test_rows_that_are_not_live_get_zeros(instruction_sets: InstructionSets) -> None:
    rows, size = 70, 48
    live = jnp.asarray([1, 5, 69, *[-1] * 67], jnp.int32)
    there = np.zeros(rows, bool)
    there[[1, 5, 69]] = True
    bad = numbers(rows, 3 * size)
    bad[~there] = np.nan
    for instructions in instruction_sets():
        made = [
            *rms_norm(jnp.asarray(bad), bad, live, numbers(3 * size), epsilon=1e-5),
            gated(jnp.asarray(bad[:, : 2 * size]), live, "silu"),
            *heads(jnp.asarray(bad), live, size, 1, None, None),
        ]
        for each in map(np.asarray, made):
            np.testing.assert_array_equal(each[~there], 0.0, err_msg=instructions)
            assert np.all(np.any(each[there].reshape(3, -1) != 0, axis=1)), instructions


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, live = jnp.zeros((2, 16)), all_live(2)
    with pytest.raises(jax.errors.JaxRuntimeError, match="norm: the shapes do not fit"):
        rms_norm(x, None, live, jnp.zeros(15), epsilon=1e-5)
    rotation = HeadRotation(jnp.zeros((2, 1, 9)), jnp.zeros((2, 1, 9)), interleaved=False)
    with pytest.raises(jax.errors.JaxRuntimeError, match="heads: the shapes do not fit"):
        heads(jnp.zeros((2, 48)), live, 16, 1, None, rotation)
