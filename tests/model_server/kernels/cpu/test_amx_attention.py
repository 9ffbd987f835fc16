"""Attention on AMX's tiles, over a model of the unit: a row has the bits that vectors give it in
the same order of sums, however many rows there are."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from model_server.kernels.cpu import native
from model_server.kernels.cpu.attention import CpuAttention
from model_server.kernels.pages import key_major_shapes, write
from tests.each_case import Failures
from tests.model_server.kernels.cpu.test_amx import choose
from tests.model_server.kernels.cpu.test_attention import in_blocks
from tests.model_server.kernels.paged_cases import (
    Case,
    attend_compiled,
    batch_of,
    filled,
    new_tokens,
    reference_of,
)

QUERIES = "SAX_CPU_AMX_QUERIES"  # rows from which attention is computed on tiles
NEVER = "1000000"

# decodes, blocks, block, heads, KV heads, key size, value size, page, columns, ...
STEPS = [
    Case(2, 2, 12, 9, 3, 64, 64, 16, 9, dtype="bfloat16"),
    Case(3, 1, 40, 8, 2, 96, 96, 32, 5, window=33, softcap=30.0, dtype="bfloat16"),
    Case(1, 2, 4, 2, 1, 128, 128, 64, 9, sinks=True, dtype="bfloat16"),
    Case(2, 1, 5, 4, 4, 25, 100, 16, 5, chunk=12, dtype="bfloat16"),
]
# Queries from token 500 on: of heads alone and in groups, up to more rows than fit at once.
PROMPTS = [
    Case(0, 1, 20, 9, 3, 64, 64, 16, 35, dtype="bfloat16"),
    Case(0, 1, 20, 4, 2, 96, 96, 32, 18, window=37, sinks=True, dtype="bfloat16"),
    Case(0, 1, 10, 8, 1, 128, 128, 64, 9, softcap=20.0, dtype="bfloat16"),
    Case(0, 1, 14, 4, 2, 256, 256, 48, 11, window=500, softcap=5.0, dtype="bfloat16"),
    Case(0, 1, 20, 2, 2, 25, 100, 16, 35, dtype="bfloat16"),
    Case(0, 1, 20, 4, 2, 8, 12, 4, 130, chunk=509, dtype="bfloat16"),
    Case(0, 1, 140, 2, 2, 16, 16, 16, 42, window=77, dtype="bfloat16"),
]


@pytest.fixture(autouse=True)
def _model() -> Iterator[None]:
    """Skip where the library was compiled without AMX."""
    before = native.in_use()
    if before is None or not choose("amx_model"):
        pytest.skip("the library was compiled without AMX, as for quick tests")
    yield
    os.environ.pop(QUERIES, None)
    choose(before.instructions)


def from_rows(number: str) -> str:
    """Choose the number of query rows from which tiles are used."""
    os.environ[QUERIES] = number
    assert choose("amx_model")
    return number


def test_rows_on_tiles_are_those_of_the_reference_within_its_tolerance() -> None:
    failures = Failures()
    for case in STEPS:
        batch = batch_of(case, CpuAttention())
        wanted, _ = reference_of(case, batch)
        for number in ("1", NEVER):
            with failures.of(case, from_rows(number)):
                layer = filled(case, key_major_shapes, write)
                got, _ = attend_compiled(case, batch, layer, *new_tokens(case))
                np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)
    assert not failures, str(failures)


def test_a_token_gets_the_bits_of_vectors_on_tiles_as_a_decode_and_in_any_chunk() -> None:
    failures = Failures()
    for case in PROMPTS:
        layer, (queries, *_) = filled(case, key_major_shapes, write), new_tokens(case)
        from_rows(NEVER)
        wanted = in_blocks(case, layer, queries, 1)
        assert np.isfinite(wanted).all()
        for size, number in itertools.product((case.block, 7, 0), ("1", "12", NEVER)):
            with failures.of(case, size, from_rows(number)):
                np.testing.assert_array_equal(in_blocks(case, layer, queries, size), wanted)
    assert not failures, str(failures)


def test_numbers_of_any_size_have_the_same_bits_and_those_that_nobody_sees_reach_nobody() -> None:
    """Scores far apart, values below the normal numbers, and what others left in the pages."""
    case = Case(0, 1, 20, 4, 2, 64, 48, 16, 35, window=37, dtype="bfloat16")
    layer, (queries, *_) = filled(case, key_major_shapes, write), new_tokens(case)
    assert layer.values is not None
    sizes = np.resize([1.0, 2.0**-120, 2.0**-130, 2.0**100], layer.values.shape)
    values = np.asarray(layer.values).astype(np.float64) * sizes
    layer = layer._replace(
        keys=layer.keys * 40, values=jnp.asarray(values.astype(ml_dtypes.bfloat16))
    )
    table = 1 + np.random.default_rng(5).permutation(case.columns)
    at = np.arange(case.columns * case.page)
    unseen = np.zeros((case.pages + 1, case.page), bool)
    unseen[table] = ((at < 500 - 37) | (at >= 500 + case.block)).reshape(case.columns, case.page)
    spoiled = layer._replace(
        keys=jnp.where(unseen[:, None, None], jnp.nan, layer.keys),
        values=jnp.where(unseen[:, None, :, None], jnp.inf, layer.values),
    )
    from_rows(NEVER)
    wanted = in_blocks(case, layer, queries, 1)
    assert np.isfinite(wanted).all()
    assert (np.abs(wanted) > 2.0**90).any()
    failures = Failures()
    for size, number in itertools.product((20, 7, 0), ("1", NEVER)):
        with failures.of(size, from_rows(number)):
            np.testing.assert_array_equal(in_blocks(case, spoiled, queries, size), wanted)
    assert not failures, str(failures)


def test_words_say_from_how_many_queries_on_attention_uses_the_unit() -> None:
    from_rows("6")
    assert "attention from 6 queries" in native.described()
    assert "queries" not in native.program_key()
