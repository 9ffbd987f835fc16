"""Norms, gates and heads of single rows, against numpy."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from model_server.engine.sampling import RowSampling, Sampled, sample
from model_server.kernels.cpu.rows import (
    CURVES,
    GATES,
    HeadNorm,
    HeadRotation,
    activated,
    add_low_rank,
    curve,
    gated,
    heads,
    layer_norm,
    mix,
    rms_norm,
)
from model_server.kernels.row_sums import balanced, rounded, row_softmax
from model_server.models.layers.rope import Rotary
from tests.each_case import Failures
from tests.model_server.kernels.cpu.instruction_sets import InstructionSets, instruction_sets

__all__ = ["instruction_sets"]

# The tests' compiler leaves out what would show that a product is fused.
AS_SERVED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
SIZES = [(1, 16), (3, 17), (40, 576), (9, 1), (200, 100), (0, 32)]
FUNCTIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf, otypes=[float])(x / np.sqrt(2))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
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


def test_layer_norms_are_those_of_numpy_and_of_a_row_alone(
    instruction_sets: InstructionSets,
) -> None:
    failures = Failures()
    for (rows, size), adds, biased in itertools.product(SIZES, [False, True], [False, True]):
        x, scale, bias = 1 + numbers(rows, size), numbers(size), numbers(size) if biased else None
        added = x[::-1].copy() if adds else None
        whole = (x if added is None else x + added).astype(np.float64)
        less = whole - whole.mean(-1, keepdims=True) if rows else whole
        wanted = normed(less, scale, 0.0, 0.5) + (0 if bias is None else bias)
        for instructions in instruction_sets():
            with failures.of(rows, size, adds, biased, instructions):
                given = (scale, bias)
                got_sum, got = layer_norm(
                    jnp.asarray(x), added, all_live(rows), *given, epsilon=0.5
                )
                np.testing.assert_allclose(got_sum, whole, rtol=1e-6)
                np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)
                if rows:
                    last = None if added is None else added[-1:]
                    _, alone = layer_norm(x[-1:], last, all_live(1), *given, epsilon=0.5)
                    np.testing.assert_array_equal(alone, got[-1:])
    assert not failures, str(failures)


ROW_FUNCTIONS = {
    "sum": lambda x: x.sum(-1, keepdims=True),
    "softmax": lambda x: (
        np.exp(x - x.max(-1, keepdims=True))
        / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
    "standardized": lambda x: (
        (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.5)
    ),
    "unit": lambda x: x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 0.5),
}


def test_functions_of_rows_have_the_same_bits_whatever_rows_are_beside(
    instruction_sets: InstructionSets,
) -> None:
    failures = Failures()
    for (rows, size), kind in itertools.product(SIZES, CURVES):
        x = 8 * numbers(rows, size)
        x[:, : size // 4] = -np.inf if kind == "softmax" and size > 4 else 0.0
        wanted = ROW_FUNCTIONS[kind](x.astype(np.float64)) if rows else x[:, :1]
        for instructions in instruction_sets():
            with failures.of(rows, size, kind, instructions):
                made = np.asarray(curve(kind, jnp.asarray(x), 0.5))
                if rows:
                    fine = 1e-4 if kind == "sum" else 1e-6
                    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=fine)
                    alone = curve(kind, jnp.asarray(x[-1:]), 0.5)
                    np.testing.assert_array_equal(alone, made[-1:])
                    assert kind != "softmax" or not made[np.isinf(x)].any()
    assert not failures, str(failures)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("mixes", [False, True])
def test_streams_are_mixed_with_the_same_bits_whatever_rows_are_beside(
    mixes: bool, adds: bool, instruction_sets: InstructionSets
) -> None:
    x, weights = numbers(50, 4, 35), numbers(50, 4, 3)
    outs = 3 if mixes else 4
    adding, made = numbers(50, outs), numbers(50, 35)
    wanted = np.einsum("tnd,tnm->tmd", x, weights) if mixes else x
    if adds:
        wanted = wanted + adding[..., None] * made[:, None]
    for instructions in instruction_sets():
        given = (x, weights if mixes else None, adding if adds else None, made if adds else None)
        got = mix(*given)
        np.testing.assert_allclose(got, wanted, atol=1e-5, err_msg=instructions)
        alone = mix(*(None if each is None else each[7:8] for each in given))
        np.testing.assert_array_equal(alone[0], got[7], err_msg=instructions)


def test_matrices_are_balanced_with_the_same_bits_whatever_rows_are_beside() -> None:
    x = np.exp(numbers(50, 4, 4))
    got = np.asarray(jax.jit(lambda x: balanced(x, 1e-6, 9))(x))
    np.testing.assert_allclose(got.sum(1), 1, atol=1e-4)
    np.testing.assert_allclose(got.sum(2), 1, atol=1e-2)
    alone = jax.jit(lambda x: balanced(x, 1e-6, 9))(x[7:8])
    np.testing.assert_array_equal(alone[0], got[7])


def test_gates_multiply_what_they_let_through(instruction_sets: InstructionSets) -> None:
    failures = Failures()
    for (rows, size), gate in itertools.product(SIZES, GATES):
        both = 4 * numbers(rows, 2 * size)
        exact = both.astype(np.float64)
        wanted = FUNCTIONS[gate](exact[:, :size]) * exact[:, size:]
        for instructions in instruction_sets():
            with failures.of(rows, size, gate, instructions):
                got = gated(jnp.asarray(both), all_live(rows), gate)
                fine = 1e-5 if gate == "gelu" else 1e-6
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=fine)
                bias, x = numbers(size), both[:, :size]
                got = activated(jnp.asarray(x), jnp.asarray(bias), all_live(rows), gate)
                wanted_too = FUNCTIONS[gate](exact[:, :size] + bias)
                np.testing.assert_allclose(got, wanted_too, rtol=1e-5, atol=2e-6)
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
            *layer_norm(jnp.asarray(bad), bad, live, numbers(3 * size), None, epsilon=1e-5),
            gated(jnp.asarray(bad[:, : 2 * size]), live, "silu"),
            activated(jnp.asarray(bad), None, live, "gelu"),
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


ROWS = 48
by_xla = jax.jit(sample)
natively = jax.jit(partial(sample, native=True))


def rows(seed: int, vocab: int) -> RowSampling:
    """Settings of every kind, each row its own."""
    rng = np.random.default_rng(seed)

    def some(of: list[float], dtype: Any = jnp.float32) -> jax.Array:
        return jnp.asarray(rng.choice(of, ROWS), dtype)

    targets = np.where(rng.random(ROWS) < 0.1, rng.integers(0, vocab, ROWS), -1)
    return RowSampling(
        temperature=some([0, 0.5, 1, 1.5]),
        top_k=some([0, 1, 5, 50, 3000, 10**6], jnp.int32),
        top_p=some([1, 0.999, 0.9, 0.5]),
        min_p=some([0, 0, 1e-4, 0.05, 0.3]),
        typical_p=some([1, 1, 0.9, 0.3]),
        seed=jnp.asarray(rng.integers(0, 2**32, (ROWS, 2)), jnp.uint32),
        position=jnp.asarray(rng.integers(0, 4000, ROWS), jnp.int32),
        target=jnp.asarray(targets, jnp.int32),
        tops=some([0, 5, 20], jnp.int32),
    )


def compare(got: Sampled, wanted: Sampled, asked: RowSampling) -> None:
    same = np.asarray(got.tokens == wanted.tokens)
    # Sums in another order may move a cut-off by a token, which seldom is the one that wins.
    assert (~same).sum() <= 1
    np.testing.assert_allclose(
        np.asarray(got.logprobs)[same], np.asarray(wanted.logprobs)[same], atol=3e-5
    )
    told = np.asarray(asked.tops) > 0
    np.testing.assert_array_equal(
        np.asarray(got.ranks)[same & told], np.asarray(wanted.ranks)[same & told]
    )
    np.testing.assert_array_equal(
        np.asarray(got.top_tokens)[told], np.asarray(wanted.top_tokens)[told]
    )
    np.testing.assert_allclose(
        np.asarray(got.top_logprobs)[told], np.asarray(wanted.top_logprobs)[told], atol=3e-5
    )


def test_tokens_and_reports_are_those_of_xla(instruction_sets: InstructionSets) -> None:
    failures = Failures()
    for vocab, spread in itertools.product([21, 300, 10_007], [0.01, 1.0, 3.0, 12.0]):
        rng = np.random.default_rng(vocab)
        logits = (rng.normal(size=(ROWS, vocab)) * spread).astype(np.float32)
        edited = logits + rng.normal(size=logits.shape).astype(np.float32) * 0.1
        edited[:, 3] = -np.inf  # not allowed
        asked = rows(int(100 * spread), vocab)
        wanted = by_xla(logits, asked, edited)
        for instructions in instruction_sets():
            with failures.of(vocab, spread, instructions):
                compare(natively(logits, asked, edited), wanted, asked)
    assert not failures, str(failures)


def test_equals_are_told_from_the_first_on(instruction_sets: InstructionSets) -> None:
    logits = np.zeros((ROWS, 40), np.float32)
    asked = rows(1, 40)._replace(
        temperature=jnp.zeros(ROWS), target=jnp.full(ROWS, -1), tops=jnp.full(ROWS, 20)
    )
    for instructions in instruction_sets():
        made = natively(logits, asked)
        assert not np.asarray(made.tokens).any(), instructions
        np.testing.assert_array_equal(made.top_tokens, np.tile(np.arange(20), (ROWS, 1)))
        assert (np.asarray(made.ranks) == 1).all(), instructions


def test_a_row_of_what_is_no_number_still_gives_a_token_of_the_vocabulary(
    instruction_sets: InstructionSets,
) -> None:
    """A neighbour's row must not care."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(ROWS, 300)).astype(np.float32)
    spoiled = logits.copy()
    spoiled[::2] = np.nan
    asked = rows(2, 300)
    for _ in instruction_sets():
        made, wanted = natively(spoiled, asked), natively(logits, asked)
        assert ((np.asarray(made.tokens) >= 0) & (np.asarray(made.tokens) < 300)).all()
        np.testing.assert_array_equal(made.tokens[1::2], wanted.tokens[1::2])
        np.testing.assert_array_equal(made.logprobs[1::2], wanted.logprobs[1::2])


product = jax.jit(add_low_rank)


def test_each_row_gets_its_own_adapters_product(instruction_sets: InstructionSets) -> None:
    failures = Failures()
    # adapters, their rank, inputs, outputs
    cases = [(16, 8, 576, (576, 192, 192)), (3, 5, 37, (17,)), (1, 16, 64, (8, 40))]
    for instructions in instruction_sets():
        for case in cases:
            with failures.of(*case, instructions):
                compare_of_low_rank(*case)
    assert not failures, str(failures)


def compare_of_low_rank(places: int, rank: int, inputs: int, outputs: tuple[int, ...]) -> None:
    rng = np.random.default_rng(places)
    rows = 9

    def factors(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(ml_dtypes.bfloat16)

    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    chosen = rng.integers(0, places + 1, rows).astype(np.int32)
    chosen[0] = 0  # none
    down = factors(places, len(outputs) * rank, inputs)
    ups = [factors(places, rank, size) for size in outputs]
    made = [rng.normal(size=(rows, size)).astype(np.float32) for size in outputs]
    got = product(x, chosen, down, ups, made)
    for index, each in enumerate(got):
        wanted = made[index].astype(np.float64)
        for row in np.nonzero(chosen)[0]:
            own = down[chosen[row] - 1].reshape(len(outputs), rank, inputs)[index]
            inner = own.astype(np.float64) @ x[row]
            wanted[row] += inner @ ups[index][chosen[row] - 1].astype(np.float64)
        np.testing.assert_allclose(each, wanted, rtol=0, atol=2e-4 * np.sqrt(inputs))
        np.testing.assert_array_equal(each[0], made[index][0])
    beside = product(x, chosen, down, ups, [np.concatenate(made, axis=1)])
    np.testing.assert_array_equal(beside[0], np.concatenate(got, axis=1))


def test_another_adapters_numbers_reach_no_row(instruction_sets: InstructionSets) -> None:
    down = np.full((2, 4, 32), np.inf, ml_dtypes.bfloat16)
    down[1] = 1
    ups = [np.ones((2, 4, 16), ml_dtypes.bfloat16)]
    made = [np.zeros((2, 16), np.float32)]
    for instructions in instruction_sets():
        got = add_low_rank(
            jnp.ones((2, 32)), jnp.asarray([2, 0], jnp.int32), jnp.asarray(down), ups, made
        )
        np.testing.assert_array_equal(got[0], [[128.0] * 16, [0.0] * 16], err_msg=instructions)


def test_what_a_weight_on_a_mesh_of_one_device_was_added_to_is_computed_natively_too() -> None:
    """As a router's biased scores are: XLA's softmax has other bits in some numbers of rows."""
    mesh = jax.make_mesh((1,), ("model",))
    bias = jax.device_put(jnp.ones(6), NamedSharding(mesh, PartitionSpec()))
    lowered = jax.jit(lambda x: row_softmax(x + bias[None])).lower(jnp.ones((5, 6)))
    assert "sax_cpu_curve" in lowered.as_text()


def test_a_product_is_rounded_before_it_is_added_however_many_rows_there_are() -> None:
    """XLA fuses the two, but not of 36 rows with four numbers, nor of the first 128 of 132."""
    factor, offsets = numbers(1, 1), numbers(1, 4)
    as_served = partial(jax.jit, compiler_options=AS_SERVED)
    added = as_served(lambda x, by, more: rounded(x * by) + more)
    turned = as_served(lambda x, cos, sin: Rotary(cos, sin, interleaved=True)(x))
    for rows in (1, 3, 16, 36, 132):
        x, heads = numbers(rows, 4), numbers(rows, 3, 4)
        made = added(x, factor, offsets)
        np.testing.assert_array_equal(made, x * factor + offsets, err_msg=str(rows))
        cos, sin = numbers(rows, 1, 2), numbers(1, rows, 2).swapaxes(0, 1)
        left, right = heads[..., ::2], heads[..., 1::2]
        pairs = left * cos - right * sin, right * cos + left * sin
        wanted = np.stack(pairs, axis=-1).reshape(heads.shape)
        np.testing.assert_array_equal(turned(heads, cos, sin), wanted, err_msg=str(rows))
