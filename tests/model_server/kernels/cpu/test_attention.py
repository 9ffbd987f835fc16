"""The native attention against the reference, on every instruction set of this machine."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.kernels.cpu.attention import MOST_DIM, CpuAttention, overwrite, unwritten
from model_server.kernels.paged import PagedBatch, PageReading, SeenPages
from model_server.kernels.pages import CacheShape, LayerPages, key_major_shapes, write
from model_server.kernels.xla import READING
from tests.each_case import Failures
from tests.model_server.kernels.cpu.instruction_sets import (
    PAIRED_NAMES,
    InstructionSets,
    instruction_sets,
    product_sets,
)
from tests.model_server.kernels.paged_cases import (
    Case,
    attend,
    attend_compiled,
    batch_of,
    filled,
    new_tokens,
    reference_of,
    sinks_of,
)

__all__ = ["instruction_sets", "product_sets"]

# decodes, blocks, block, heads, KV heads, key size, value size, page, columns, ...; one with blocks
# and a cap on scores is in test_one_of_each.py
CASES = [
    Case(3, 0, 1, 9, 3, 64, 64, 16, 5),
    Case(3, 1, 4, 4, 1, 12, 32, 16, 5, window=9, dtype="float8_e4m3fn"),
    Case(2, 1, 4, 20, 1, 576, 0, 32, 3, dtype="int8"),  # the keys are the values
    # Its keys are shared out among threads.
    Case(2, 0, 1, 6, 3, 16, 16, 16, 200, dtype="bfloat16", sinks=True),
    Case(3, 2, 8, 8, 2, 64, 64, 16, 5, window=4, run=5),  # images whose tokens see each other
    Case(4, 3, 8, 8, 2, 64, 64, 16, 5, chunk=12),
    Case(2, 2, 8, 4, 4, 10, 10, 8, 5, chunk=8),  # small pages, which are copied
    Case(2, 1, 4, 4, 1, 12, 0, 8, 5, window=9, dtype="int8"),
    Case(2, 2, 8, 4, 4, 10, 10, 16, 5, dtype="bfloat16"),
    Case(2, 1, 4, 4, 2, 24, 100, 16, 5, dtype="int8"),
]
MORE = [
    Case(2, 2, 32, 9, 3, 64, 80, 16, 9, window=33),
    Case(3, 0, 1, 2, 1, 24, 32, 64, 12, window=300, dtype="int8"),
    Case(2, 1, 4, 20, 1, 48, 0, 16, 5, dtype="bfloat16"),
    Case(1, 1, 32, 4, 2, 256, 256, 48, 3, softcap=30.0),
    Case(1, 0, 1, 3, 3, 16, 16, 16, 200),
    Case(2, 0, 1, 4, 4, 10, 10, 8, 5, window=13),
    Case(2, 0, 1, 2, 2, 1200, 8, 16, 5),  # XLA's
    Case(1, 0, 1, 4, 4, 16, 16, 16, 1),  # one page
    Case(3, 2, 8, 8, 2, 64, 64, 16, 5, window=9, sinks=True),
    Case(2, 0, 1, 4, 4, 10, 10, 1, 40, sinks=True),
    Case(3, 0, 1, 3, 3, 16, 16, 16, 200, chunk=1024),
    Case(1, 0, 1, 2, 1, 16, 16, 64, 1024),  # sixty-four thousand tokens
]


@pytest.mark.parametrize(
    "cases", [CASES, pytest.param(MORE, marks=pytest.mark.nightly)], ids=["of each kind", "more"]
)
def test_equals_the_reference(cases: list[Case], product_sets: InstructionSets) -> None:
    """Rows, and the pages that were written."""
    failures = Failures()
    for case in cases:
        batch = batch_of(case, CpuAttention())
        wanted, wrote = reference_of(case, batch)
        for instructions in product_sets():
            with failures.of(case, instructions):
                layer = filled(case, key_major_shapes, write)
                got, layer = attend_compiled(case, batch, layer, *new_tokens(case))
                bound = 0.02 if rounds(case, instructions) else 1e-5
                np.testing.assert_allclose(got, wanted, rtol=0, atol=bound)
                for own, its in zip(jax.tree.leaves(layer), jax.tree.leaves(wrote), strict=True):
                    np.testing.assert_array_equal(own[1:], its[1:])
    assert not failures, str(failures)


def rounds(case: Case, instructions: str) -> bool:
    """True if queries and weights of values are rounded to bfloat16."""
    return instructions in PAIRED_NAMES and case.dtype == "bfloat16" and case.value_dim > 0


ROUNDED = [
    Case(3, 0, 1, 9, 3, 64, 64, 16, 70, dtype="bfloat16"),
    Case(3, 0, 1, 4, 2, 11, 13, 32, 30, window=301, dtype="bfloat16"),
    Case(2, 0, 1, 8, 1, 24, 100, 16, 40, softcap=5.0, sinks=True, dtype="bfloat16"),
]


def test_pairs_round_queries_and_weights_and_nothing_else(
    instruction_sets: InstructionSets,
) -> None:
    """A weight that lies between two bfloat16 may become the other one: that is the bound."""
    failures, compared = Failures(), 0
    for case in ROUNDED:
        batch = batch_of(case, CpuAttention())
        for instructions in instruction_sets():
            if not rounds(case, instructions):
                continue
            with failures.of(case, instructions):
                layer = filled(case, key_major_shapes, write)
                queries, *new = new_tokens(case)
                got, layer = attend_compiled(case, batch, layer, queries, *new)
                wanted = rounded_reference(case, batch, layer, np.asarray(queries))
                np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-4)
                compared += 1
    if not compared:
        pytest.skip("no instruction set of this machine multiplies pairs")
    assert not failures, str(failures)


def rounded_reference(
    case: Case, batch: PagedBatch, layer: LayerPages, queries: np.ndarray
) -> np.ndarray:
    """f32[T, H, W] of decodes, in segments of 128 keys whose weights are rounded."""
    assert layer.values is not None
    keys = np.asarray(layer.keys, np.float64)  # [P, K, D, G]
    values = np.asarray(layer.values, np.float64)  # [P, K, G, W]
    tables, limits = np.asarray(batch.decode_tables), np.asarray(batch.decode_limits)[:, 0]
    scaled = to_bfloat16(queries * np.float32(case.key_dim**-0.5))
    sinks = np.asarray(sinks_of(case.heads)) if case.sinks else None
    made = np.zeros((len(tables), case.heads, case.value_dim))
    for row, limit in enumerate(limits):
        for head in range(case.heads):
            kv_head = head // (case.heads // case.kv_heads)
            its_keys = keys[tables[row], kv_head].transpose(0, 2, 1).reshape(-1, case.key_dim)
            its_values = values[tables[row], kv_head].reshape(-1, case.value_dim)
            scores = its_keys[:limit] @ scaled[row, head]
            if case.softcap:
                scores = case.softcap * np.tanh(scores / case.softcap)
            if case.window:
                scores[: max(0, limit - case.window)] = -np.inf
            sink = None if sinks is None else sinks[head]
            made[row, head] = mixed_in_segments(scores, its_values[:limit], sink)
    return made


def mixed_in_segments(scores: np.ndarray, values: np.ndarray, sink: float | None) -> np.ndarray:
    """f64[W]: each segment's weights are those beside the highest score of its part so far."""
    total, mixed = 0.0, np.zeros(values.shape[1])
    if sink is not None:
        total = np.exp(float(sink))
    for part in range(0, len(scores), 512):
        highest = -np.inf
        for at in range(part, min(part + 512, len(scores)), 128):
            some = scores[at : min(at + 128, part + 512)]
            highest = max(highest, some.max())
            if highest == -np.inf:
                continue
            weights = np.exp(some - highest)
            mixed += np.exp(highest) * (to_bfloat16(weights) @ values[at : at + len(some)])
            total += np.exp(highest) * weights.sum()
    return mixed / total if total else mixed


def to_bfloat16(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(numbers, np.float32).astype(jnp.bfloat16).astype(np.float64)


# Queries whose limits cross a part of 512 keys, each seeing what its rules allow.
EXACT = [
    Case(0, 1, 20, 9, 3, 64, 64, 16, 35),
    Case(0, 1, 20, 4, 2, 16, 16, 16, 35, window=37, dtype="bfloat16"),
    Case(0, 1, 20, 4, 2, 16, 16, 16, 35, window=500, sinks=True),
    Case(0, 1, 20, 4, 1, 24, 32, 16, 35, chunk=509, dtype="int8"),
    Case(0, 1, 20, 4, 2, 8, 8, 16, 35),
    Case(0, 1, 20, 2, 2, 24, 100, 16, 35, dtype="bfloat16"),
    Case(0, 1, 20, 20, 1, 72, 0, 16, 35, dtype="bfloat16"),
    Case(0, 1, 20, 4, 2, 8, 12, 4, 130, window=37, dtype="bfloat16"),
]


def test_a_token_gets_the_same_bits_as_a_decode_and_in_any_chunk_of_a_prompt(
    product_sets: InstructionSets,
) -> None:
    failures = Failures()
    for case in EXACT:
        layer, (queries, *_) = filled(case, key_major_shapes, write), new_tokens(case)
        for instructions in product_sets():
            with failures.of(case, instructions):
                wanted = in_blocks(case, layer, queries, case.block)
                for size in (7, 1):
                    made = in_blocks(case, layer, queries, size)
                    np.testing.assert_array_equal(made, wanted, err_msg=f"blocks of {size}")
                made = in_blocks(case, layer, queries, 0)
                np.testing.assert_array_equal(made, wanted, err_msg="decodes")
    assert not failures, str(failures)


SHARED = [
    Case(6, 0, 1, 4, 2, 24, 20, 16, 100),
    Case(6, 0, 1, 3, 1, 64, 64, 64, 25, window=600, dtype="bfloat16"),
    Case(20, 0, 1, 2, 2, 16, 0, 32, 50, sinks=True, dtype="int8"),
]


def test_decodes_that_share_pages_get_the_bits_that_each_gets_alone(
    product_sets: InstructionSets,
) -> None:
    """Of 512 tokens at least, in several groups, beside others with pages of their own."""
    failures = Failures()
    for case in SHARED:
        batch, layer = batch_of(case, CpuAttention()), filled(case, key_major_shapes, write)
        tables, columns = np.asarray(batch.decode_tables).copy(), np.arange(case.columns)
        tables[1::2] = np.where(columns * case.page < 1024, tables[1], tables[1::2])
        tables[4] = np.where(columns * case.page < 512, tables[1], tables[4])
        limits = np.resize([1500, 1600, 700, 1100, 1599, 1024], (case.decodes, 1))
        # what is written goes to the scratch page
        nowhere = jnp.zeros(case.decodes, jnp.int32)
        batch = replace(batch, pages=nowhere, decode_tables=jnp.asarray(tables))
        tokens = new_tokens(case)

        def made(
            limits: np.ndarray, case=case, batch=batch, layer=layer, tokens=tokens
        ) -> np.ndarray:
            told = replace(batch, decode_limits=jnp.asarray(limits, jnp.int32))
            return np.asarray(attend_compiled(case, told, layer, *tokens)[0])

        for instructions in product_sets():
            together = made(limits)
            for row in (0, 1, 3, 4, 5):
                with failures.of(case, instructions, row):
                    others = np.arange(case.decodes)[:, None] != row
                    alone = made(np.where(others, 0, limits))
                    np.testing.assert_array_equal(together[row], alone[row])
                    assert together[row].any()
    assert not failures, str(failures)


# Keys as values, of which queries compare and get the first numbers; and two groups of heads.
CHOSEN = [
    (Case(0, 1, 21, 20, 1, 40, 0, 16, 35, dtype="bfloat16"), 1),
    (Case(0, 1, 21, 12, 1, 40, 0, 4, 140, dtype="int8"), 1),
    (Case(0, 1, 21, 8, 2, 24, 20, 16, 35), 4),
    (Case(0, 1, 21, 8, 2, 24, 20, 16, 35, dtype="bfloat16"), 4),
]


@pytest.mark.parametrize(("case", "choosers"), CHOSEN)
def test_chosen_tokens_give_the_same_bits_as_decodes_and_in_any_chunk_of_a_prompt(
    case: Case, choosers: int, product_sets: InstructionSets
) -> None:
    """Behind what a window shows of other pages, in one softmax."""
    layers = [
        filled(each, key_major_shapes, write) for each in (replace(case, dtype="float32"), case)
    ]
    tokens = case.page * case.columns
    flags = np.random.default_rng(4).random((choosers, case.block, tokens)) < 0.2
    flags[:, 3] = False  # it attends to the window alone
    q = new_tokens(case)[0][..., :24]

    def made(reading: PageReading, size: int) -> np.ndarray:
        where = tables_and_limits(case, size)
        its = flags.reshape(choosers, -1, size, tokens).swapaxes(0, 1)
        chosen = jnp.asarray(its if choosers > 1 else its[:, 0])
        seen = [SeenPages(layers[0], *where, 37), SeenPages(layers[1], *where, chosen=chosen)]
        shaped = q.reshape(-1, size, *q.shape[1:])
        found = reading.attention(shaped, seen, scale=0.3, sinks=sinks_of(case.heads))
        return np.asarray(found).reshape(case.block, case.heads, -1)

    expected, native = made(READING, case.block), CpuAttention()
    for instructions in product_sets():
        wanted = made(native, case.block)
        bound = 0.01 if rounds(case, instructions) else 2e-5
        np.testing.assert_allclose(wanted, expected, rtol=0, atol=bound, err_msg=instructions)
        for size in (7, 1):
            np.testing.assert_array_equal(made(native, size), wanted, f"{instructions} {size}")


@pytest.mark.parametrize("case", [case for case, _ in CHOSEN[:2]])
@pytest.mark.parametrize("weighted", [True, False])
def test_scores_of_tokens_have_the_same_bits_in_any_chunk(
    case: Case, weighted: bool, instruction_sets: InstructionSets
) -> None:
    """Of the last numbers of keys, added up or of each head."""
    layer, rng = filled(case, key_major_shapes, write), np.random.default_rng(3)
    by, weights = (
        jnp.asarray(rng.standard_normal((case.block, *shape)), jnp.float32)
        for shape in ((9, 14), (9,))
    )

    def made(reading: PageReading, size: int) -> np.ndarray:
        pages = SeenPages(layer, *tables_and_limits(case, size))
        parts = [each.reshape(-1, size, *each.shape[1:]) for each in (by, weights)]
        found = reading.scores(pages, parts[0], parts[1] if weighted else None)
        return np.asarray(found).reshape(case.block, *found.shape[2:])

    expected, native = made(READING, case.block), CpuAttention()
    for instructions in instruction_sets():
        wanted = made(native, case.block)
        np.testing.assert_allclose(wanted, expected, rtol=1e-5, atol=2e-5, err_msg=instructions)
        for size in (7, 1):
            np.testing.assert_array_equal(made(native, size), wanted, f"{instructions} {size}")


def tables_and_limits(case: Case, size: int) -> tuple[jax.Array, jax.Array]:
    """Of queries from token 500 on, each seeing one more, in rows of so many."""
    table = 1 + np.random.default_rng(5).permutation(case.columns)
    limits = 500 + np.arange(case.block).reshape(-1, size)
    return jnp.asarray(np.tile(table, (len(limits), 1)), jnp.int32), jnp.asarray(limits, jnp.int32)


def in_blocks(case: Case, layer: LayerPages, queries: jax.Array, size: int) -> np.ndarray:
    """Attend with the queries from token 500 on, in blocks of this size; 0: as decode rows."""
    table = 1 + np.random.default_rng(5).permutation(case.columns)
    rows = len(queries)
    blocks = -(-rows // size) if size else 0
    limits = np.zeros((blocks, max(size, 1)), np.int32)
    limits.reshape(-1)[:rows] = 500 + np.arange(rows) if size else []
    decodes = 0 if size else rows
    places = blocks * size + decodes
    batch = PagedBatch(
        pages=jnp.zeros(places, jnp.int32),  # what is written goes to the scratch page
        offsets=jnp.zeros(places, jnp.int32),
        decode_tables=jnp.asarray(np.tile(table, (decodes, 1)), jnp.int32),
        decode_limits=jnp.asarray(500 + np.arange(decodes)[:, None], jnp.int32),
        block_tables=jnp.asarray(np.tile(table, (blocks, 1)), jnp.int32),
        block_limits=jnp.asarray(limits),
        kernel=CpuAttention(),
    )
    padded = jnp.pad(queries, ((0, places - rows), (0, 0), (0, 0)))
    _, keys, values = new_tokens(case, seed=1, count=places)
    made, _ = attend_compiled(case, batch, layer, padded, keys, values)
    return np.asarray(made)[:rows]


def test_a_token_gets_the_same_bits_beside_images_whose_tokens_see_each_other() -> None:
    case = Case(3, 2, 8, 8, 2, 64, 64, 16, 5, run=5)
    batch, tokens = batch_of(case, CpuAttention()), new_tokens(case)
    alone = replace(batch, block_ahead=jnp.zeros_like(batch.block_ahead))
    made, wanted = (
        np.asarray(attend_compiled(case, each, filled(case, key_major_shapes, write), *tokens)[0])
        for each in (batch, alone)
    )
    looks = np.pad(np.asarray(batch.block_ahead).ravel() > 0, (case.decodes, 0))
    np.testing.assert_array_equal(made[~looks], wanted[~looks])
    assert (made[looks] != wanted[looks]).any()


def test_a_step_without_rows_gives_none() -> None:
    case = Case(0, 0, 1, 4, 2, 16, 16, 16, 2)
    batch = replace(
        batch_of(replace(case, decodes=1), CpuAttention()),
        pages=jnp.zeros(0, jnp.int32),
        offsets=jnp.zeros(0, jnp.int32),
        decode_tables=jnp.zeros((0, 2), jnp.int32),
        decode_limits=jnp.zeros((0, 1), jnp.int32),
    )
    layer = filled(replace(case, decodes=1), key_major_shapes, write)
    got, _ = attend_compiled(case, batch, layer, *new_tokens(case))
    assert got.shape == (0, 4, 16)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("value_dim", [16, 0], ids=["values", "keys as values"])
def test_numbers_that_are_none_outside_the_limits_reach_nobody(
    value_dim: int, dtype: str, product_sets: InstructionSets
) -> None:
    """Somebody else may have left them there."""
    case = Case(2, 0, 1, 2, 1, 16, value_dim, 16, 4, window=8, dtype=dtype)
    kernel = CpuAttention()
    batch = replace(batch_of(case, kernel), decode_limits=jnp.asarray([[19], [0]], jnp.int32))
    clean = filled(case, key_major_shapes, write)
    table = np.asarray(batch.decode_tables[0])
    batch = replace(batch, pages=jnp.asarray([table[1], 0]), offsets=jnp.asarray([2, 0]))
    hidden = np.ones(case.columns * case.page, bool)
    hidden[19 - 8 : 19] = False
    dirty = np.zeros((case.pages + 1, 1, case.page), bool)
    dirty[table, 0] = hidden.reshape(case.columns, case.page)
    dirty[np.asarray(batch.decode_tables[1])] = True
    spoiled = clean._replace(keys=jnp.where(dirty[:, :, None], jnp.nan, clean.keys))
    if clean.values is not None:
        spoiled = spoiled._replace(values=jnp.where(dirty[..., None], jnp.nan, clean.values))
    for instructions in product_sets():
        wanted, _ = attend_compiled(case, batch, clean, *new_tokens(case))
        got, _ = attend_compiled(case, batch, spoiled, *new_tokens(case))
        np.testing.assert_array_equal(got, wanted, err_msg=instructions)
        assert np.asarray(got[0]).any(), instructions
        assert not np.asarray(got[1]).any(), instructions


def test_pages_are_written_in_place() -> None:
    """Neither a copy of the pool nor a second pool: it may be most of the memory."""
    case = Case(2, 1, 16, 4, 2, 64, 64, 16, 64)
    batch, layer = batch_of(case, CpuAttention()), filled(case, key_major_shapes, write)
    step = jax.jit(attend, static_argnums=0, donate_argnums=2)
    memory = step.lower(case, batch, layer, *new_tokens(case)).compile().memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= layer.keys.nbytes + layer.values.nbytes
    assert memory.temp_size_in_bytes < layer.keys.nbytes


def test_whole_pages_are_overwritten_in_place() -> None:
    failures = Failures()
    for dtype in ("float32", "bfloat16", "int8", "float8_e4m3fn"):
        held = jnp.arange(5 * 3 * 2).reshape(5, 3, 2).astype(dtype)
        rows = -jnp.ones((2, 3, 2), dtype)
        wanted = np.asarray(held).copy()
        wanted[[4, 1]] = np.asarray(rows)
        place = held.unsafe_buffer_pointer()
        with failures.of(dtype):
            made = jax.jit(overwrite, donate_argnums=0)(held, jnp.asarray([4, 1], jnp.int32), rows)
            np.testing.assert_array_equal(made, wanted)
            assert made.unsafe_buffer_pointer() == place
    assert not failures, str(failures)


def test_a_page_outside_the_pool_is_refused_and_read_by_nobody() -> None:
    case = Case(1, 0, 1, 4, 2, 16, 16, 16, 2)
    batch = batch_of(case, CpuAttention())
    outside = replace(batch, decode_tables=batch.decode_tables + 1_000_000)
    with pytest.raises(jax.errors.JaxRuntimeError, match="a page outside the pool"):
        jax.block_until_ready(
            attend_compiled(case, outside, filled(case, key_major_shapes, write), *new_tokens(case))
        )


def test_unwritten_pages_have_their_shapes_and_those_that_xla_reads_are_zeros(
    instruction_sets: InstructionSets,
) -> None:
    dtype = jnp.dtype(jnp.bfloat16)
    for instructions in instruction_sets():
        for size in (16, MOST_DIM + 1):
            cache = CacheShape(layers=1, kv_heads=2, key_dim=size, value_dim=size)
            shapes = key_major_shapes(cache, 3, 16, dtype)
            made = unwritten(shapes)
            assert (made.keys.shape, made.keys.dtype) == (shapes.keys.shape, dtype)
            assert made.values is not None
            assert made.values.shape == made.keys.swapaxes(2, 3).shape
            assert size == 16 or not np.asarray(made.keys).any(), instructions
