"""Weights in tiles, and products with them, against numpy."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from model_server.checkpoints.packed import FLOAT4, PackedBlocks, Packing
from model_server.kernels.cpu import native
from model_server.kernels.cpu.tiles import (
    ByteForm,
    ByteTiles,
    byte_product,
    byte_rows,
    byte_tiles,
    dense_product,
    plain_product,
    plain_rows,
    plain_tiles,
    plain_weight,
    tiles_of,
)
from tests.each_case import Failures
from tests.model_server.kernels.cpu.instruction_sets import InstructionSets, product_sets
from tests.model_server.kernels.cpu.packed_weights import blocks_of

__all__ = ["product_sets"]

# rows, inputs, outputs: one row, one tile, odd numbers, none, and more than are read at once
SHAPES = [
    (1, 576, 960),
    (2, 64, 16),
    (3, 577, 49),
    (8, 1536, 576),
    (9, 2, 1),
    (31, 40, 100),
    (33, 1, 17),
    (0, 64, 64),
    (130, 4100, 40),
]


def weight_of(outputs: int, inputs: int) -> np.ndarray:
    rng = np.random.default_rng(outputs)
    return rng.normal(size=(outputs, inputs)).astype(ml_dtypes.bfloat16)


def rows_of(rows: int, inputs: int) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, inputs)).astype(np.float32)


@pytest.fixture(autouse=True)
def _with_library() -> None:
    if not native.available():
        pytest.skip("sax was installed without its native kernels: no compiler was found")


def test_a_product_is_that_of_the_rounded_rows(product_sets: InstructionSets) -> None:
    failures, product = Failures(), jax.jit(plain_product, static_argnums=0)
    for rows, inputs, outputs in SHAPES:
        weight, x = weight_of(outputs, inputs), rows_of(rows, inputs)
        tiles = jnp.asarray(plain_tiles(weight))
        wanted = x.astype(ml_dtypes.bfloat16).astype(np.float64) @ weight.astype(np.float64).T
        for instructions in product_sets():
            with failures.of(rows, inputs, outputs, instructions):
                made = product((outputs, inputs), x, tiles)
                np.testing.assert_allclose(made, wanted, rtol=0, atol=4e-6 * max(inputs, 10))
    assert not failures, str(failures)


def test_a_product_of_floats_is_that_of_numpy_and_of_a_row_alone(
    product_sets: InstructionSets,
) -> None:
    failures, product = Failures(), jax.jit(plain_product, static_argnums=0)
    for rows, inputs, outputs in [(1, 1, 1), (9, 33, 50), (67, 576, 100), (5, 4099, 17)]:
        weight = weight_of(outputs, inputs).astype(np.float32)
        x, tiles = rows_of(rows, inputs), jnp.asarray(plain_tiles(weight))
        np.testing.assert_array_equal(plain_weight(tiles, (outputs, inputs)), weight)
        np.testing.assert_array_equal(tiles_of(jnp.asarray(weight)), tiles)
        wanted = x.astype(np.float64) @ weight.astype(np.float64).T
        for instructions in product_sets():
            with failures.of(rows, inputs, outputs, instructions):
                made = np.asarray(product((outputs, inputs), x, tiles))
                np.testing.assert_allclose(made, wanted, rtol=0, atol=4e-6 * max(inputs, 10))
                np.testing.assert_array_equal(
                    product((outputs, inputs), x[-1:], tiles)[0], made[-1]
                )
                live = jnp.asarray([rows - 1, *[-1] * (rows - 1)], jnp.int32)
                some = np.asarray(product((outputs, inputs), x, tiles, live))
                np.testing.assert_array_equal(some[-1], made[-1])
                assert not some[:-1].any()
    assert not failures, str(failures)


def test_tiles_hold_the_weight() -> None:
    failures = Failures()
    for outputs, inputs in [(16, 2), (49, 577), (1, 1), (100, 40)]:
        with failures.of(outputs, inputs):
            weight = weight_of(outputs, inputs)
            tiles = jnp.asarray(plain_tiles(weight))
            np.testing.assert_array_equal(tiles_of(jnp.asarray(weight)), tiles)
            np.testing.assert_array_equal(plain_weight(tiles, (outputs, inputs)), weight)
            index = np.random.default_rng(0).integers(0, outputs, 7)
            rows = plain_rows(tiles, jnp.asarray(index), inputs)
            np.testing.assert_array_equal(rows, weight[index])
    assert not failures, str(failures)


def test_rounds_as_numpy_does_and_keeps_what_is_no_number(
    product_sets: InstructionSets,
) -> None:
    x = np.asarray([[1.00390625, -1.01171875, np.inf, 3e-39]], np.float32)  # two ties, to even
    one = np.eye(4, dtype=ml_dtypes.bfloat16)
    tiles = jnp.asarray(plain_tiles(one))
    finite = np.where(np.isfinite(x), x, 0).astype(np.float32)
    wanted = finite.astype(ml_dtypes.bfloat16).astype(np.float32)
    for instructions in product_sets():
        made = np.asarray(plain_product((4, 4), jnp.asarray(finite), tiles))
        np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-37, err_msg=instructions)
        nothing = np.asarray(plain_product((4, 4), jnp.asarray(x * np.nan), tiles))
        assert np.isnan(nothing).all(), instructions


def test_gradients_are_those_of_the_plain_product() -> None:
    weight, x = weight_of(20, 6), rows_of(3, 6)
    tiles = jnp.asarray(plain_tiles(weight))

    def tiled(x: jax.Array, tiles: jax.Array) -> jax.Array:
        return jnp.square(plain_product((20, 6), x, tiles)).sum()

    def plain(x: jax.Array, weight: jax.Array) -> jax.Array:
        small = x.astype(weight.dtype)
        return jnp.square(jnp.matmul(small, weight.T, preferred_element_type=jnp.float32)).sum()

    of_x, of_tiles = jax.grad(tiled, argnums=(0, 1))(jnp.asarray(x), tiles)
    wanted = jax.grad(plain, argnums=(0, 1))(jnp.asarray(x), jnp.asarray(weight))
    np.testing.assert_allclose(of_x, wanted[0], rtol=2e-2, atol=2e-2)
    of_weight = plain_weight(of_tiles, (20, 6)).astype(np.float32)
    np.testing.assert_allclose(of_weight, wanted[1].astype(np.float32), rtol=2e-2, atol=2e-1)


PACKINGS = [
    Packing("int8", None, False),
    Packing("int8", 16, False),
    Packing("int8", 64, True),
    Packing("int4", None, False),
    Packing("int4", 32, True),
    Packing("int4", 64, False),
    Packing(FLOAT4, 32, False),
]


def quantised(shape: tuple[int, int], packing: Packing) -> tuple[ByteForm, PackedBlocks, ByteTiles]:
    """A weight of this shape, and its tiles on the device."""
    form, blocks = blocks_of(weight_of(*shape).astype(np.float32), packing)
    return form, blocks, jax.tree.map(jnp.asarray, byte_tiles(form, blocks))


def test_a_quantised_product_loses_next_to_nothing(product_sets: InstructionSets) -> None:
    """Two bytes for each number; scales are of 11 bits."""
    failures, product = Failures(), jax.jit(byte_product, static_argnums=0)
    for packing, rows in itertools.product(PACKINGS, [0, 1, 3, 9, 31, 32, 130]):
        form, blocks, tiles = quantised((50, 192), packing)
        x = rows_of(rows, 192)
        wanted = x.astype(np.float64) @ blocks.dequantized().astype(np.float64).T
        fine = 1e-4 if packing.block is None else 5e-4
        for instructions in product_sets():
            with failures.of(packing, rows, instructions):
                made = product(form, x, tiles)
                assert made.shape == wanted.shape
                lost = np.square(made - wanted).mean() / np.square(wanted).mean() if rows else 0
                assert np.sqrt(lost) < fine
    assert not failures, str(failures)


def in_one_byte(x: np.ndarray, form: ByteForm) -> np.ndarray:
    """Each number in steps of a 127th of the largest of its block, which is 64 or the weight's."""
    blocks = x.reshape(len(x), -1, min(form.block, 64)).astype(np.float64)
    steps = np.abs(blocks).max(-1, keepdims=True) / 127
    return (np.rint(blocks / steps) * steps).reshape(x.shape)


def test_a_product_with_one_byte_a_number_is_that_of_the_rounded_rows(
    product_sets: InstructionSets,
) -> None:
    failures, product = Failures(), jax.jit(byte_product, static_argnums=0)
    for packing, rows in itertools.product(PACKINGS, [1, 7, 8, 9, 67]):
        form, blocks, tiles = quantised((50, 192), packing)
        x = rows_of(rows, 192)
        wanted = in_one_byte(x, form) @ blocks.dequantized().astype(np.float64).T
        for instructions in product_sets():
            with failures.of(packing, rows, instructions):
                made = product(form._replace(one_byte=True), x, tiles)
                lost = np.square(made - wanted).mean() / np.square(wanted).mean()
                assert np.sqrt(lost) < 5e-4
    assert not failures, str(failures)


def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(product_sets: InstructionSets) -> None:
    """The first and last rows of batches on both sides of every group of rows that is known."""
    failures, product = Failures(), jax.jit(byte_product, static_argnums=0)
    plain = jax.jit(plain_product, static_argnums=0)
    x, weight = rows_of(67, 576), jnp.asarray(plain_tiles(weight_of(50, 576)))
    every = [(None, False), *itertools.product(PACKINGS, (False, True))]
    for packing, one_byte in every:
        form, _, tiles = quantised((50, 576), packing or PACKINGS[0])
        form = form._replace(one_byte=one_byte)
        for instructions in product_sets():
            with failures.of(packing, one_byte, instructions):
                whole = plain((50, 576), x, weight) if packing is None else product(form, x, tiles)
                for first, last in [(0, 1), (66, 67), (3, 5), (1, 10), (0, 31), (30, 62)]:
                    some = x[first:last]
                    made = (
                        plain((50, 576), some, weight)
                        if packing is None
                        else product(form, some, tiles)
                    )
                    np.testing.assert_array_equal(made, whole[first:last], err_msg=f"{first}")
    assert not failures, str(failures)


def test_rows_of_a_quantised_table() -> None:
    index, failures = np.asarray([0, 49, 17, 16, 3]), Failures()
    for packing in PACKINGS:
        with failures.of(packing):
            form, blocks, tiles = quantised((50, 192), packing)
            wanted = blocks.dequantized()[index]
            rows = byte_rows(tiles, form, jnp.asarray(index))
            np.testing.assert_allclose(rows, wanted, atol=3e-3)
    assert not failures, str(failures)


def test_scales_far_below_what_float16_holds_keep_their_digits() -> None:
    blocks = PackedBlocks(np.full((16, 64), 100, np.int8), np.full((16, 2), 1e-9, np.float32), None)
    form = ByteForm((16, 64), 32, 8, False)
    tiles = jax.tree.map(jnp.asarray, byte_tiles(form, blocks))
    made = byte_product(form, jnp.ones((1, 64)), tiles)
    np.testing.assert_allclose(made, np.full((1, 16), 64 * 100 * 1e-9), rtol=1e-3)


def test_gradients_pass_a_quantised_weight() -> None:
    form, blocks, tiles = quantised((20, 64), Packing("int8", None, False))
    weights = np.random.default_rng(0).normal(size=(3, 20)).astype(np.float32)
    made = jax.grad(lambda x: (byte_product(form, x, tiles) * weights).sum())(rows_of(3, 64))
    np.testing.assert_allclose(made, weights @ blocks.dequantized(), rtol=1e-3, atol=1e-3)


def test_forms_that_do_not_fill_a_vector_do_not_fit() -> None:
    assert not ByteForm((16, 64), 2, 8, False).fits
    assert not ByteForm((16, 64), 4, 4, False).fits
    assert not ByteForm((16, 60), 60, 4, False).fits
    assert ByteForm((16, 60), 60, 8, False).fits


def test_calls_from_many_threads_do_not_mix() -> None:
    weight, x = weight_of(320, 64), rows_of(5, 64)
    tiles = jnp.asarray(plain_tiles(weight))
    product = jax.jit(plain_product, static_argnums=0)
    wanted = np.asarray(product((320, 64), x, tiles))

    def many(number: int) -> None:
        for _ in range(50):
            made = np.asarray(product((320, 64), x * (1 + number % 2), tiles))
            np.testing.assert_array_equal(made, wanted * (1 + number % 2))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(8)))


def test_only_live_rows_are_multiplied() -> None:
    failures = Failures()
    packings = (None, Packing("int8", None, False), Packing("int4", 32, True))
    for packing, there in itertools.product(packings, [[], [0], [3, 4, 39], list(range(40))]):
        with failures.of(packing, there):
            multiply_live_rows(packing, there)
    assert not failures, str(failures)


def multiply_live_rows(packing: Packing | None, there: list[int]) -> None:
    live = jnp.asarray(there + [-1] * (40 - len(there)), jnp.int32)
    x = rows_of(40, 192)
    x[[row for row in range(40) if row not in there]] = np.nan  # read by nobody
    if packing is None:
        shape, tiles = (50, 192), jnp.asarray(plain_tiles(weight_of(50, 192)))
        made = plain_product(shape, jnp.asarray(x), tiles, live)
        alone = plain_product(shape, jnp.asarray(x[there]), tiles)
    else:
        form, _, its = quantised((50, 192), packing)
        made = byte_product(form, jnp.asarray(x), its, live)
        alone = byte_product(form, jnp.asarray(x[there]), its)
    np.testing.assert_array_equal(made[np.asarray(there, int)], alone)
    assert not np.delete(np.asarray(made), there, axis=0).any()


def test_a_product_with_a_weight_as_it_lies_is_that_of_each_row_and_head(
    product_sets: InstructionSets,
) -> None:
    """Rows that are not live are zeros; a row has the same bits whatever rows are beside it."""
    failures = Failures()
    for (rows, inputs, outputs), dtype in itertools.product(SHAPES, ["float32", "bfloat16"]):
        x = rows_of(rows, 3 * inputs).reshape(rows, 3, inputs)
        weight = weight_of(3 * outputs, inputs).astype(dtype).reshape(3, outputs, inputs)
        wanted = np.einsum("thk,hnk->thn", x.astype(dtype).astype(float), weight.astype(float))
        live = jnp.asarray([*range(1, rows), -1] if rows else [], jnp.int32)
        for instructions in product_sets():
            with failures.of(rows, inputs, outputs, dtype, instructions):
                made = np.asarray(dense_product(jnp.asarray(x), jnp.asarray(weight)))
                np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-3)
                some = np.asarray(dense_product(jnp.asarray(x), jnp.asarray(weight), live))
                np.testing.assert_array_equal(some[1:], made[1:])
                assert not some[:1].any()
                alone = dense_product(jnp.asarray(x[-1:]), jnp.asarray(weight))
                np.testing.assert_array_equal(alone, made[-1:])
    assert not failures, str(failures)


def test_its_gradients_are_those_of_the_product() -> None:
    x, weight = (jnp.asarray(rows_of(n, 12).reshape(n, 2, 6)) for n in (3, 5))
    by_head = weight.transpose(1, 0, 2)

    def native_one(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.square(dense_product(x, weight)).sum()

    def plain(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.square(jnp.einsum("thk,hnk->thn", x, weight)).sum()

    made, wanted = (jax.grad(f, argnums=(0, 1))(x, by_head) for f in (native_one, plain))
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
