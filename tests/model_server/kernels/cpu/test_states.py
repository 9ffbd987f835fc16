"""Recurrences by the native kernels: equal to XLA's, and with the same bits in chunks and alone."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels.cpu.attention import CpuAttention
from model_server.kernels.states import Filtering, MemoryTokens, Remembering, advance, places_of
from model_server.models.layers.delta_net import delta_rule
from model_server.models.layers.state_space import scan
from tests.each_case import Failures
from tests.model_server.kernels.cpu.instruction_sets import InstructionSets, instruction_sets

__all__ = ["instruction_sets"]

PAGE, HEADS, HIGH, WIDE, WIDTH = 8, 3, 18, 20, 4
TOKENS = 30  # of a sequence, in pages 1 to 4


def numbers(*shape: int) -> jax.Array:
    drawn = np.random.default_rng(sum(shape)).normal(size=shape)
    return jnp.asarray(drawn, jnp.float32)


class Taps:
    """A convolution of 37 channels: three sums of sixteen lanes, the last of five."""

    taps, offset = numbers(37, WIDTH), numbers(37)

    def __call__(self, before: jax.Array, x: jax.Array, count: jax.Array) -> Any:
        seen = jnp.concatenate([before, x.T], axis=1)
        made = sum(seen[:, i : i + x.shape[0]] * self.taps[:, i : i + 1] for i in range(WIDTH))
        left = jax.lax.dynamic_slice_in_dim(seen, count, WIDTH - 1, axis=1)
        return left, (made + self.offset[:, None]).T


def fading(rated: bool) -> Remembering:
    """A memory that takes in numbers of the inputs and of the convolution's results."""

    def tokens(made: Any, given: Any) -> tuple[MemoryTokens, jax.Array]:
        column, row, read, decay, rate = given[1:]
        return MemoryTokens(column, row, read, decay, rate if rated else None), made[0]

    def by_xla(memory: jax.Array, of: MemoryTokens) -> tuple[jax.Array, jax.Array]:
        if of.rate is None:
            return scan(memory, of.column, of.row, of.read, of.decay)
        return delta_rule(memory, of.read, of.column, of.row, of.rate, of.decay)

    def finished(made: jax.Array, rest: jax.Array) -> jax.Array:
        return jnp.concatenate([made.reshape(rest.shape[0], -1), rest], axis=1)

    return Remembering([Taps()], tokens, by_xla, finished)


def inputs(rated: bool, *, by_row: bool = False) -> tuple[jax.Array, ...]:
    """What the tokens of a sequence bring; by_row: each row of a memory fades by itself."""
    column, row = numbers(TOKENS, HEADS, HIGH), numbers(TOKENS, HEADS, WIDE)
    column /= jnp.linalg.norm(column, axis=-1, keepdims=True)
    read = numbers(TOKENS, HEADS, HIGH if rated else WIDE)
    fades = (TOKENS, HEADS, HIGH) if by_row else (TOKENS, HEADS)
    decay, rate = -jnp.abs(numbers(*fades)), jax.nn.sigmoid(numbers(TOKENS, HEADS))
    return numbers(TOKENS, 37), column, row, read, decay, rate


def computed(step: Any, given: Any, chunks: list[int], kernel: Any) -> tuple[np.ndarray, Any]:
    """Compute a sequence in steps of so many tokens each; 0: one, as a decode row beside another.

    Returns the outputs, and the states in the page of the last token.
    """
    memory = (jnp.zeros((9, HEADS, HIGH, WIDE)),) if isinstance(step, Remembering) else ()
    held = (jnp.full((9, 37, WIDTH - 1), 7.0), *memory)
    found: list[np.ndarray] = []
    at = 0
    for chunk in chunks:
        size = max(chunk, 1)
        part = jax.tree.map(functools.partial(_cut, at=at, size=size), given)
        made, held = _step(step, held, part, at, chunk, kernel)
        found.append(made)
        at += size
    last = (at - 1) // PAGE + 1
    return np.concatenate(found), [np.asarray(each[last]) for each in held]


def _cut(each: jax.Array, at: int, size: int) -> jax.Array:
    return each[at : at + size]


def _step(step: Any, held: Any, part: Any, at: int, chunk: int, kernel: Any) -> Any:
    """One step: a padding row before it, and padding behind a block, in a second block."""
    table, none = [[1, 2, 3, 4]], jnp.zeros((0, 4), jnp.int32)
    blank = tuple(jnp.zeros(each.shape[1:]) for each in held)
    if chunk == 0:
        tables = jnp.asarray([[0] * 4, *table], jnp.int32)
        places = places_of(tables, jnp.asarray([[0], [at + 1]]), none, none[:, :1], PAGE)
        rows = jax.tree.map(lambda each: jnp.concatenate([each * 0 + 3.0, each]), part)
        made, held = advance(held, places, blank, rows, jnp.zeros(0, jnp.int32), step, kernel)
        return np.asarray(made)[1:], held
    # Blocks of four, which do not cross the border of a page.
    borders = [at]
    while borders[-1] < at + chunk:
        first = borders[-1]
        borders.append(min(first + 4, (first // PAGE + 1) * PAGE, at + chunk))
    counts = np.diff(borders)
    limits = np.zeros((len(counts), 4), np.int32)
    shape = (len(counts), 4)
    index = np.zeros(shape, np.int32)
    for block, (first, count) in enumerate(zip(borders, counts, strict=False)):
        limits[block, :count] = first + 1 + np.arange(count)
        index[block, :count] = first - at + np.arange(count)
    tables = jnp.asarray(table * len(counts), jnp.int32)
    places = places_of(none, none[:, :1], tables, jnp.asarray(limits), PAGE)
    rows = jax.tree.map(lambda each: each[index.reshape(-1)], part)
    of = jnp.asarray(counts, jnp.int32)
    made, held = advance(held, places, blank, rows, of, step, kernel)
    return np.asarray(made)[limits.reshape(-1) > 0], held


def test_states_equal_those_of_xla_and_have_the_same_bits_in_any_chunks(
    instruction_sets: InstructionSets,
) -> None:
    failures = Failures()
    for name, step, given in (
        ("convolution", Filtering(Taps()), inputs(rated=False)[0]),
        ("taken in", fading(rated=False), inputs(rated=False)),
        ("corrected", fading(rated=True), inputs(rated=True)),
        ("corrected by row", fading(rated=True), inputs(rated=True, by_row=True)),
    ):
        wanted, kept = computed(step, given, [TOKENS], None)
        whole: Any = None
        for instructions in instruction_sets():
            with failures.of(name, instructions):
                whole, left = computed(step, given, [TOKENS], CpuAttention())
                np.testing.assert_allclose(whole, wanted, rtol=2e-5, atol=2e-5)
                for one, other in zip(left, kept, strict=True):
                    np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
                for chunks in ([0] * TOKENS, [7, 9, 0, 13], [1, 29]):
                    made, its = computed(step, given, chunks, CpuAttention())
                    np.testing.assert_array_equal(made, whole, err_msg=f"{chunks}")
                    for one, other in zip(its, left, strict=True):
                        np.testing.assert_array_equal(one, other, err_msg=f"{chunks}")
    assert not failures, str(failures)
