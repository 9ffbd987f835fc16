"""Products on AMX, by the same source over a model of the unit: bits that hold on any machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from model_server.checkpoints.packed import FLOAT4, Packing
from model_server.kernels.cpu import native
from model_server.kernels.cpu.native import InUse
from model_server.kernels.cpu.tiles import (
    ByteForm,
    byte_product,
    byte_tiles,
    plain_product,
    plain_tiles,
)
from model_server.models.weights.quantization import quantize
from tests.each_case import Failures
from tests.model_server.kernels.cpu.instruction_sets import TILE_NAMES
from tests.model_server.kernels.cpu.packed_weights import blocks_of

STEP = 32  # numbers of a row that the unit multiplies at once


def choose(name: str) -> bool:
    library = native.library()
    return library is not None and bool(library.sax_cpu_choose(name.encode()))


@pytest.fixture(autouse=True)
def units() -> Iterator[list[str]]:
    """The model, and the unit where this machine has it; the first one is in use."""
    before = native.in_use()
    found = [name for name in TILE_NAMES if choose(name)]
    if before is None or not found:
        pytest.skip("the library was compiled without AMX, as for quick tests")
    choose(found[0])
    yield found
    choose(before.instructions)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def halves(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16)


def multiplied(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    tiles = jnp.asarray(plain_tiles(weight))
    return np.asarray(plain_product(weight.shape, jnp.asarray(x), tiles))


def as_intel_says(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Even and odd products of each 32 numbers summed apart, then added to the total: f32[T, N].

    A product of two bfloat16 is exact in float32, so adding it is a fused multiplication.
    """
    left, right = halves(x).astype(np.float32), weight.astype(np.float32)
    total = np.zeros((len(x), len(weight)), np.float32)
    for begin in range(0, left.shape[1], STEP):
        parts = np.zeros((2, *total.shape), np.float32)
        for i in range(begin, min(begin + STEP, left.shape[1])):
            parts[i % 2] += left[:, i, None] * right[None, :, i]
        total += parts[0] + parts[1]
    return total


def test_sums_of_bfloat16_have_the_bits_of_intels_definition(units: list[str]) -> None:
    # rows of one register, of two, and of several blocks; tails of rows, numbers and outputs; and
    # more numbers than are read at once where there are many rows
    shapes = [(1, 576, 48), (3, 577, 49), (17, 64, 16), (32, 33, 33), (33, 1, 17), (70, 1100, 40)]
    failures = Failures()
    for (rows, inputs, outputs), unit in itertools.product(shapes, units):
        with failures.of(rows, inputs, outputs, unit):
            choose(unit)
            x, weight = numbers(rows, inputs), halves(numbers(outputs, inputs))
            np.testing.assert_array_equal(multiplied(x, weight), as_intel_says(x, weight))
    assert not failures, str(failures)


def test_more_rows_than_the_cache_holds_are_multiplied_in_groups() -> None:
    x, weight = numbers(300, 64), halves(numbers(20, 64))
    np.testing.assert_array_equal(multiplied(x, weight), as_intel_says(x, weight))


def test_bits_of_a_row_do_not_depend_on_how_many_there_are() -> None:
    x, weight = numbers(70, 1100), halves(numbers(40, 1100))
    whole, failures = multiplied(x, weight), Failures()
    for first, count in [(0, 1), (69, 1), (5, 2), (0, 15), (8, 16), (3, 17), (1, 31), (30, 33)]:
        with failures.of(first, count):
            np.testing.assert_array_equal(
                multiplied(x[first : first + count], weight), whole[first : first + count]
            )
    assert not failures, str(failures)


def test_the_last_numbers_are_multiplied_with_no_other_tiles_weights() -> None:
    multiplied(numbers(5, 64) * np.nan, halves(numbers(48, 64)))  # what lay in memory before
    x, weight = numbers(5, 41), halves(numbers(48, 41))
    weight[16:] = np.nan
    made = multiplied(x, weight)
    assert np.isfinite(made[:, :16]).all()
    assert np.isnan(made[:, 16:]).all()


def test_numbers_below_the_normal_ones_are_zeros() -> None:
    tiny, one = np.float32(2.0**-130), np.ones((1, 2), np.float32)
    assert not multiplied(one, halves(one * tiny)).any()
    assert not multiplied(one * np.float32(2.0**-70), halves(one * np.float32(2.0**-70))).any()
    normal = np.float32(2.0**-126)
    assert multiplied(one * normal, halves(one)).item() == 2 * normal


def test_rows_that_do_not_lie_side_by_side_are_multiplied() -> None:
    x, weight = numbers(40, 64), halves(numbers(20, 64))
    there = [0, 3, 4, *range(9, 39)]
    live = jnp.asarray(there + [-1] * (40 - len(there)), jnp.int32)
    made = plain_product((20, 64), jnp.asarray(x), jnp.asarray(plain_tiles(weight)), live)
    np.testing.assert_array_equal(np.asarray(made)[there], multiplied(x[there], weight))
    assert not np.delete(np.asarray(made), there, axis=0).any()


# Blocks of a part of a register, of one, of one and a part, and of a whole row.
BLOCKS = [16, 32, 64, 96, None]


@pytest.mark.parametrize("one_byte", [False, True])
@pytest.mark.parametrize("kind", ["int8", "int4", FLOAT4])
def test_whole_numbers_have_the_bits_of_vectors(
    kind: str, one_byte: bool, units: list[str]
) -> None:
    if not choose("avx512_vnni"):
        pytest.skip("the same numbers and order of sums are those of AVX-512 VNNI only")
    failures, product = Failures(), jax.jit(byte_product, static_argnums=0)
    for block, rows, unit in itertools.product(BLOCKS, [1, 4, 9, 16, 17, 33, 45], units):
        with failures.of(block, rows, unit):
            packing = Packing(kind, block, block == 32 and kind != FLOAT4)
            form, blocks = blocks_of(numbers(50, 576), packing)
            form = form._replace(one_byte=one_byte)
            tiles = jax.tree.map(jnp.asarray, byte_tiles(form, blocks))
            x = numbers(rows, 576)
            choose("avx512_vnni")
            wanted = np.asarray(product(form, x, tiles))
            choose(unit)
            np.testing.assert_array_equal(product(form, x, tiles), wanted)
    assert not failures, str(failures)


def test_a_block_longer_than_whole_numbers_hold_is_summed_in_parts() -> None:
    inputs = 65536 + 1024  # whose products no 32 bits hold
    form = ByteForm((16, inputs), inputs, 8, False)
    blocks = quantize(np.ones((16, inputs), np.float32), Packing("int8", None, False))
    tiles = jax.tree.map(jnp.asarray, byte_tiles(form, blocks))
    made = np.asarray(byte_product(form, jnp.ones((4, inputs)), tiles))
    np.testing.assert_allclose(made, np.full((4, 16), inputs), rtol=1e-3)


def test_of_several_instruction_sets_one_that_is_clearly_faster_is_used() -> None:
    """The model is slower than all others by orders of magnitude."""
    for names in ("portable,amx_model", "amx_model,portable", "avx1024,portable,amx_model"):
        assert choose(names)
        used, library = native.in_use(), native.library()
        assert used is not None
        assert library is not None
        assert used.instructions == "portable"
        told = library.sax_cpu_measured().decode()
        assert sorted(each.split()[0] for each in told.split(", ")) == ["amx_model", "portable"]
    assert not choose("avx1024,avx2048")


def test_words_say_why_a_machine_with_the_unit_does_not_use_it() -> None:
    told = [InUse("avx512_bf16", 2, rows).units for rows in (0, -1, -2)]
    assert told[0] == ""
    assert "does not grant" in told[1]
    assert "compiler" in told[2]


def test_the_log_says_which_products_are_on_the_unit() -> None:
    used = native.in_use()
    assert used is not None
    units = "(bfloat16 from 1 row on, int8 and int4 from 4, attention from 1 queries)"
    assert native.described() == f"{used.instructions} {units}, {used.threads} threads"
