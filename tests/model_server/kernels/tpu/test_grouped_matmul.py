"""The TPU product by small numbers: its results in interpret mode, its program by the compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from model_server.kernels.small_numbers import Packed, can_gate, fits, form_of, held_blocks
from model_server.kernels.tpu.grouped_matmul import (
    gated_grouped_matmul,
    grouped_matmul,
    matmul,
    visits_of,
)
from tests.each_case import Failures
from tests.model_server.compiled_program import made_as_large_as
from tests.model_server.small_weights import STORED, packed_weight
from tests.model_server.tpu_compiler import CHIPS, compiled, needs_compiler, one_device


def _gated(opening: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.silu(opening) * up


def check(
    sizes: list[int], rows: int, outputs: int, inputs: int, kind: str, blocks: int, offset: bool
) -> None:
    packed, wide = packed_weight((len(sizes), outputs, inputs), kind, blocks, offset=offset)
    check_of(packed, wide, sizes, rows)


def check_of(packed: Packed, wide: np.ndarray, sizes: list[int], rows: int) -> None:
    _, outputs, inputs = wide.shape
    blocks = 1 if packed.scales is None else packed.scales.shape[2]
    x = jnp.asarray(np.random.default_rng(1).normal(size=(rows, inputs)), jnp.bfloat16)
    run = jax.jit(lambda *a: grouped_matmul(*a, interpret=True))
    found = np.asarray(run(x, packed, jnp.asarray(sizes, jnp.int32)))
    wanted = np.zeros((rows, outputs))
    group = np.repeat(np.arange(len(sizes)), sizes)
    for row, expert in enumerate(group):
        wanted[row] = wide[expert] @ np.asarray(x[row], np.float64)
    # What is widened is rounded to bfloat16 once; a scale per row waits for the sum.
    loose = 2**-8 if blocks > 1 else 1e-5
    np.testing.assert_allclose(found, wanted, atol=loose * np.abs(wanted).max() + 1e-6)
    assert not found[sum(sizes) :].any()


@pytest.mark.parametrize(
    ("kind", "inputs", "blocks", "offset"),
    [
        ("int4", 448, 14, True),
        pytest.param("int8", 384, 12, False, marks=pytest.mark.nightly),
        pytest.param("int4", 1024, 4, True, marks=pytest.mark.nightly),
    ],
)
def test_zeros_behind_the_scales_count_for_nothing(
    kind: str, inputs: int, blocks: int, offset: bool
) -> None:
    packed, wide = packed_weight((3, 128, inputs), kind, blocks, offset=offset)

    def held(array: jax.Array | None) -> Any:
        rest = (0, 0), (0, 0), (0, held_blocks(blocks) - blocks)
        return None if array is None else jnp.pad(array, rest)

    scales, offsets = held(packed.scales), held(packed.offsets)
    check_of(Packed(packed.values, scales, offsets, blocks), wide, [5, 0, 9], 16)


_FEW = [("int8", 2304, 144), ("int4", 448, 14), ("float8", 512, 2)]
_FORMS = [
    ("int8", 256, 1),
    ("int8", 384, 12),
    ("int4", 512, 1),
    ("int4", 1024, 32),
    ("int4", 1024, 4),
    ("float8", 512, 2),
    ("int8", 2304, 144),  # scales in more lanes than one register has
    ("int8", 160, 5),  # the order of the weight is turned
    ("int4", 448, 14),  # likewise
    ("int8", 480, 60),
]


@pytest.mark.parametrize(
    ("kind", "inputs", "blocks"),
    [
        pytest.param(*form, marks=[] if form in _FEW else pytest.mark.nightly, id=str(form))
        for form in _FORMS
    ],
)
def test_a_product_is_that_of_the_dequantised_weight(kind: str, inputs: int, blocks: int) -> None:
    check([5], 5, 256, inputs, kind, blocks, offset=True)


@pytest.mark.nightly
def test_a_product_without_offsets_is_that_of_the_dequantised_weight() -> None:
    failures = Failures()
    for kind, inputs, blocks in _FORMS:
        with failures.of(kind, inputs, blocks):
            check([5], 5, 256, inputs, kind, blocks, offset=False)
    assert not failures, str(failures)


@settings(max_examples=4, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 7, 16, 33]), min_size=3, max_size=3),
    st.sampled_from([("bfloat16", 1), ("int8", 1), ("int4", 8)]),
    st.sampled_from([0, 9]),
)
def test_each_group_gets_its_own_matrix_wherever_groups_end(
    sizes: list[int], kind: tuple[str, int], nobodys: int
) -> None:
    check(sizes, max(1, sum(sizes) + nobodys), 200, 256, *kind, offset=kind[0] == "int4")


def test_one_group_may_have_every_row_of_many_tiles() -> None:
    check([0, 300, 0, 0], 300, 128, 128, "int8", 4, False)


def test_what_other_rows_hold_changes_nothing() -> None:
    packed, _ = packed_weight((1, 128, 128), "int8", 4, offset=True)
    x = np.random.default_rng(0).normal(size=(4, 128)).astype(np.float32)
    run = jax.jit(lambda x: grouped_matmul(x, packed, jnp.asarray([4]), interpret=True))
    alone = np.asarray(run(x))
    x[2] = np.nan
    found = np.asarray(run(x))
    np.testing.assert_array_equal(found[[0, 1, 3]], alone[[0, 1, 3]])


@pytest.mark.parametrize(
    ("kind", "inputs", "blocks"), [("bfloat16", 256, 1), ("int8", 384, 12), ("int4", 448, 14)]
)
def test_gate_activation_and_up_in_one_call_are_those_of_two_rounded_once(
    kind: str, inputs: int, blocks: int
) -> None:
    gate, up = (
        packed_weight((3, 256, inputs), kind, blocks, offset=kind == "int4", seed=seed)[0]
        for seed in (0, 1)
    )
    x = jnp.asarray(np.random.default_rng(1).normal(size=(40, inputs)), jnp.bfloat16)
    sizes = jnp.asarray([9, 0, 20], jnp.int32)
    assert can_gate(gate, up)

    @jax.jit
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        opening, other = (grouped_matmul(x, each, sizes, interpret=True) for each in (gate, up))
        apart = (jax.nn.silu(opening) * other).astype(jnp.bfloat16)
        options = {"interpret": True}
        return apart, gated_grouped_matmul(x, gate, up, sizes, _gated, jnp.bfloat16, **options)

    apart, together = (np.asarray(each, np.float32)[:29] for each in both(x))
    np.testing.assert_array_equal(together, apart)
    assert together.any()


def test_weights_of_two_forms_take_two_calls() -> None:
    plain = packed_weight((2, 256, 256), "bfloat16", 1, offset=False)[0]
    small = packed_weight((2, 256, 256), "int8", 1, offset=False)[0]
    assert not can_gate(plain, small)


def test_blocks_that_share_no_register_evenly_are_refused() -> None:
    odd = Packed(jnp.zeros((1, 256, 768), jnp.int8), jnp.zeros((1, 256, 32)), None)
    assert not fits(odd)
    assert fits(replace(odd, scales=jnp.zeros((1, 256, 24))))


def test_a_weight_is_taken_in_the_order_in_which_a_tpu_keeps_it() -> None:
    def form(outputs: int, columns: int, blocks: int) -> Any:
        values = jax.ShapeDtypeStruct((1, outputs, columns), jnp.int8)
        return form_of(Packed(values, jax.ShapeDtypeStruct((1, outputs, blocks), "f4"), None))  # type: ignore[arg-type]

    assert (form(8192, 3584, 112).turned, form(8192, 3584, 112).turned_scales) == (False, True)
    assert (form(8192, 4096, 128).turned, form(8192, 4096, 128).turned_scales) == (False, False)
    assert (form(8192, 448, 14).turned, form(8192, 448, 14).turned_scales) == (True, True)


# rows, experts, outputs, inputs, kind, blocks, offset
LARGE = {
    "175B int8": (8, 1, 12288, 1536, "int8", 1, True),
    "70B int4:32": (8, 1, 8192, 3584, "int4", 112, False),
    "70B int4:32, a prompt": (320, 1, 8192, 3584, "int4", 112, True),
    "rows of 448 bytes": (8, 1, 8192, 896, "int4", 28, False),
    "rows of 28672": (64, 1, 2048, 28672, "int8", 896, False),
    "float8 in blocks": (64, 1, 8192, 3584, "float8", 28, False),
    "mixtral up": (16, 8, 1792, 4096, "bfloat16", 1, False),
    "mixtral down": (640, 8, 4096, 1792, "int8", 1, False),
    "mixtral int4:32": (16, 8, 4096, 1792, "int4", 56, True),
}


@needs_compiler
@pytest.mark.parametrize("case", ["70B int4:32, a prompt", "mixtral int4:32"])
def test_the_compiler_takes_it_and_moves_no_weight(case: str) -> None:
    check_program(CHIPS[0], case)


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("case", LARGE)
def test_every_chips_compiler_takes_it_and_moves_no_weight(case: str) -> None:
    failures = Failures()
    for chip in CHIPS:
        with failures.of(chip):
            check_program(chip, case)
    assert not failures, str(failures)


def check_program(chip: str, case: str) -> None:
    rows, experts, outputs, inputs, kind, blocks, offset = LARGE[case]
    mesh = one_device(chip)

    def shape(dimensions: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(
            dimensions, dtype, sharding=NamedSharding(mesh, PartitionSpec())
        )

    columns = inputs // 2 if kind == "int4" else inputs
    scales = None if kind == "bfloat16" else shape((experts, outputs, blocks), jnp.float32)
    packed = Packed(
        shape((experts, outputs, columns), STORED[kind]), scales, scales if offset else None
    )

    def run(x: jax.Array, packed: Packed, sizes: jax.Array) -> jax.Array:
        each = grouped_matmul if experts > 1 else one_of_one
        return jax.shard_map(
            each, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
        )(x, packed, sizes)

    program = compiled(
        run, shape((rows, inputs), jnp.bfloat16), packed, shape((experts,), jnp.int32)
    )
    assert not made_as_large_as(program, outputs * columns * experts)
    if scales is not None and blocks > 1:
        scale_sized = made_as_large_as(program, max(outputs * blocks * experts, rows * outputs + 1))
        brought = all("S(1)" in line for line in scale_sized)  # to VMEM, not written back
        # libtpu for v5p and v7x turns scales of under a MiB in HBM.
        assert brought or outputs * blocks * experts < 2**18


def one_of_one(x: jax.Array, packed: Packed, sizes: jax.Array) -> jax.Array:
    return matmul(x, jax.tree.map(lambda array: array[0], packed))


planned = jax.jit(visits_of, static_argnums=(1, 2))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=4, max_size=4), st.integers(0, 20))
def test_every_row_meets_its_group_once(sizes: list[int], nobodys: int) -> None:
    rows = 16
    tiles = max(1, -(-(sum(sizes) + nobodys) // rows))
    visits = planned(jnp.asarray(sizes, jnp.int32), tiles, rows)
    count = int(visits.total[0])
    expert, tile = (np.asarray(a)[:count] for a in (visits.expert, visits.tile))
    seen: list[tuple[int, int]] = []
    for e, t in zip(expert, tile, strict=True):
        begin, end = (int(a[e]) for a in (visits.starts, visits.ends))
        seen += [(int(e), r) for r in range(t * rows, (t + 1) * rows) if begin <= r < end]
    owners = np.repeat(np.arange(4), sizes)
    assert seen == [(int(e), r) for r, e in enumerate(owners)]
    assert (np.diff(tile) >= 0).all()  # visits of one tile are neighbours


def test_a_group_without_rows_is_not_visited() -> None:
    visits = visits_of(jnp.asarray([0, 3, 0, 2], jnp.int32), 1, 16)
    assert visits.expert[: visits.total[0]].tolist() == [1, 3]


def test_there_is_one_visit_where_nobody_has_a_row() -> None:
    visits = visits_of(jnp.zeros(4, jnp.int32), 2, 16)
    assert visits.total.tolist() == [1]
    assert (visits.starts == visits.ends).all()
