"""The GPU's kernel: its numbers in interpret mode, its programs by the real compilers."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from model_server.kernels.gpu.attention import GpuAttention, token_major_shapes, write_tokens
from model_server.kernels.paged import KernelRefusal
from model_server.models.weights.sharding import AXES
from tests.each_case import Failures
from tests.model_server import gpu_compiler
from tests.model_server.kernels.paged_cases import (
    Case,
    arguments,
    attend,
    attend_compiled,
    batch_of,
    filled,
    new_tokens,
    reference_of,
)
from tests.processes import on_devices

ROOT = Path(__file__).parents[4]
# decodes, blocks, block, heads, KV heads, key size, value size, page, columns, ...
CASES = [
    Case(3, 0, 1, 2, 1, 24, 32, 64, 12, window=300, dtype="int8"),  # programs share a context
    Case(2, 1, 4, 20, 1, 48, 0, 8, 5, dtype="bfloat16"),  # the keys are the values
    Case(4, 3, 8, 8, 2, 16, 16, 16, 5, chunk=12),
    # Images whose tokens see each other, over several pages.
    Case(3, 2, 8, 8, 2, 16, 16, 4, 20, softcap=50.0, window=4, sinks=True, run=5),
]
MORE = [
    *CASES,
    Case(3, 0, 1, 9, 3, 64, 64, 16, 5),
    Case(2, 2, 8, 8, 2, 16, 16, 4, 5, softcap=50.0, window=4),
    Case(3, 1, 4, 4, 1, 12, 7, 8, 5, window=9, dtype="float8_e4m3fn"),
    Case(2, 2, 8, 8, 2, 16, 16, 64, 12, window=300, sinks=True),  # programs share a context
    Case(2, 1, 32, 6, 2, 24, 16, 64, 10),
    Case(2, 1, 32, 16, 1, 576, 0, 16, 5),
    Case(2, 3, 32, 8, 2, 80, 96, 64, 20),
]
# What models have: Llama, Gemma with its cap and window, a head size of Phi, DeepSeek's latents,
# gpt-oss's sinks, Llama 4's chunks, Gemma 3's images.
REAL = [
    Case(16, 0, 1, 32, 8, 128, 128, 64, 64),
    Case(2, 2, 32, 32, 8, 128, 128, 64, 64),
    Case(2, 2, 32, 8, 4, 256, 256, 64, 64, softcap=50.0, window=1024),
    Case(2, 2, 32, 32, 32, 80, 80, 16, 64),
    Case(2, 2, 32, 128, 1, 576, 0, 64, 64),
    Case(4, 0, 1, 16, 2, 192, 128, 64, 64),
    Case(2, 2, 32, 64, 8, 64, 64, 64, 64, window=128, sinks=True),
    Case(2, 2, 32, 40, 8, 128, 128, 64, 64, chunk=1024),
    Case(2, 4, 128, 8, 4, 256, 256, 64, 64, window=1024, run=256),
]
DTYPES = ("float32", "bfloat16", "int8", "float8_e4m3fn")


def here(interpret: bool) -> GpuAttention:
    mesh = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1, 1), AXES)
    return GpuAttention(mesh, None, None, interpret)


def compare(case: Case, kernel: GpuAttention) -> None:
    """Rows, and the pages that were written, with those of the reference."""
    batch = batch_of(case, kernel)
    pages = filled(case, token_major_shapes, write_tokens)
    got, layer = attend_compiled(case, batch, pages, *new_tokens(case))
    wanted, wrote = reference_of(case, batch)
    # Small numbers are multiplied in bfloat16, whose step is 2**-8.
    exact = case.dtype == "float32"
    np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-5 if exact else 2e-2)
    np.testing.assert_array_equal(layer.keys.swapaxes(2, 3)[1:], wrote.keys[1:])
    for own, its in zip(layer[1:], wrote[1:], strict=True):
        if own is not None or its is not None:
            np.testing.assert_array_equal(own[1:], its[1:])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_reference(case: Case) -> None:
    compare(case, here(interpret=True))


def variants(case: Case, dtype: str) -> list[Case]:
    """With every window and cap; of its own dtype as it is, too."""
    options = ((None, None), (1, None), (17, 20.0), (1000, None))
    changed = [replace(case, window=w, softcap=cap, dtype=dtype) for w, cap in options]
    return [case, *changed] if case.dtype == dtype else changed


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", MORE, ids=str)
def test_equals_the_reference_in_every_combination(case: Case, dtype: str) -> None:
    failures = Failures()
    for each in variants(case, dtype):
        with failures.of(each):
            compare(each, here(interpret=True))
    assert not failures, str(failures)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_reference_on_a_gpu(dtype: str) -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("no GPU here; on a machine with one, set JAX_PLATFORMS=cuda")
    failures = Failures()
    with jax.default_matmul_precision("highest"):  # of the reference
        for each in itertools.chain.from_iterable(variants(case, dtype) for case in MORE):
            with failures.of(each):
                compare(each, here(interpret=False))
    assert not failures, str(failures)


def test_a_block_reads_nothing_of_the_pages_beyond_its_limits() -> None:
    """Not even numbers that are none, which somebody else may have left there."""
    case = Case(2, 0, 1, 2, 1, 16, 16, 8, 4, window=9)
    kernel = here(interpret=True)
    batch = replace(batch_of(case, kernel), decode_limits=jnp.asarray([[19], [0]], jnp.int32))
    q, k, v = new_tokens(case)
    clean = filled(case, token_major_shapes, write_tokens)
    hidden = np.ones((case.columns, case.page), bool)
    hidden.ravel()[19 - 9 : 19] = False
    table = np.asarray(batch.decode_tables[0])
    dirty = np.zeros((case.pages + 1, 1, case.page, 1), bool)
    dirty[table, 0, :, 0] = hidden
    dirty[np.asarray(batch.decode_tables[1])] = True
    spoiled = jax.tree.map(lambda a: jnp.where(dirty, jnp.nan, a), clean)
    # The new tokens are written where they may be seen.
    batch = replace(batch, pages=jnp.asarray([table[2], 0]), offsets=jnp.asarray([2, 0]))
    wanted, _ = attend_compiled(case, batch, clean, q, k, v)
    got, _ = attend_compiled(case, batch, spoiled, q, k, v)
    np.testing.assert_array_equal(got, wanted)
    assert np.asarray(got[0]).any()
    assert not np.asarray(got[1]).any()


def test_heads_have_to_lie_with_their_pages() -> None:
    mesh = AbstractMesh((1, 1, 2), AXES)
    case = Case(2, 0, 1, 4, 2, 16, 16, 8, 2)
    for heads, pages in (("model", None), (None, "model")):
        kernel = GpuAttention(mesh, heads, pages)
        with pytest.raises(KernelRefusal, match="shard both alike"):
            jax.eval_shape(lambda *of: attend(case, *of), *arguments(case, kernel))


def test_pages_that_triton_addresses_wrongly_are_refused() -> None:
    case = Case(1, 0, 1, 8, 8, 128, 128, 64, 64, dtype="int8")
    kernel = GpuAttention(AbstractMesh((1, 1, 1), AXES), None, None)
    batch, _, *new = arguments(case, kernel)
    for pages, fits in ((32_000, True), (40_000, False), (80_000, True)):
        layer = kernel.shapes(case.cache, pages, case.page, jnp.dtype("int8"))
        if fits:
            jax.eval_shape(lambda *of: attend(case, *of), batch, layer, *new)
            continue
        with pytest.raises(KernelRefusal, match="int8 take 2.4 GiB"):
            jax.eval_shape(lambda *of: attend(case, *of), batch, layer, *new)


@pytest.fixture(scope="module")
def lowers() -> None:
    """Up to jaxlib 0.10.2 Triton's compiler runs inside XLA's; later, when a program is lowered."""

    def copied(source: jax.Array, target: jax.Array) -> None:
        target[...] = source[...]

    shape = jax.ShapeDtypeStruct((16,), jnp.float32)
    call = pl.pallas_call(copied, out_shape=shape, compiler_params=plgpu.CompilerParams())
    try:
        jax.jit(call).trace(shape).lower(lowering_platforms=("cuda",))
    except Exception as error:  # whatever it is: of this jaxlib, not of our kernel
        pytest.skip(f"this jaxlib lowers no Triton kernel without its plugin for CUDA: {error}")


@pytest.mark.usefixtures("lowers")
@pytest.mark.parametrize(
    ("case", "dtypes"),
    [
        (REAL[2], DTYPES[:1]),
        (REAL[4], DTYPES[3:]),
        (REAL[6], DTYPES[2:3]),
        *(pytest.param(case, DTYPES, marks=pytest.mark.nightly) for case in REAL),
    ],
    ids=str,
)
def test_triton_takes_the_kernel(case: Case, dtypes: tuple[str, ...]) -> None:
    """Which refuses sizes that are no powers of two, and what it has no instruction for."""
    failures = Failures()
    for dtype in dtypes:
        with failures.of(dtype):
            each = replace(case, dtype=dtype)
            shapes = arguments(each, here(interpret=False))
            traced = jax.jit(attend, static_argnums=0).trace(each, *shapes)
            text = traced.lower(lowering_platforms=("cuda",)).as_text()
            assert text.count("paged_attention") >= 1 + bool(case.blocks)
    assert not failures, str(failures)


@pytest.mark.nightly
@gpu_compiler.needs_compiler
@pytest.mark.parametrize("chip", gpu_compiler.CHIPS)
@pytest.mark.parametrize("case", REAL, ids=str)
def test_a_gpu_has_room_for_the_kernel(case: Case, chip: str) -> None:
    """Shared memory above all; and pages are written where they are."""
    failures = Failures()
    for dtype in DTYPES:
        if (dtype, chip) != ("float8_e4m3fn", "a100"):  # an A100 knows no float8
            with failures.of(dtype):
                check_room(replace(case, dtype=dtype), chip)
    assert not failures, str(failures)


def check_room(case: Case, chip: str) -> None:
    mesh = gpu_compiler.one_gpu(chip)
    kernel = GpuAttention(mesh, None, None)
    shapes = arguments(case, kernel, NamedSharding(mesh, PartitionSpec()))
    jitted = jax.jit(attend, static_argnums=0, donate_argnums=2)
    memory = jitted.lower(case, *shapes).compile().memory_analysis()
    assert memory is not None
    pages = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(shapes[1]))
    assert memory.alias_size_in_bytes == pages
    assert memory.temp_size_in_bytes < 128 * 2**20


# What each device has of a result: tokens, heads, numbers.
HEADS_AND_PAGES, HEADS_ALONE, ROWS = (4, 4, 16), (4, 4, 24), (2, 8, 24)


@pytest.mark.parametrize(
    "runs",
    [
        {"heads and pages": HEADS_AND_PAGES, "rows": ROWS},
        pytest.param(
            {"heads alone": HEADS_ALONE, "rows, which divide or not": None},
            marks=pytest.mark.nightly,
        ),
    ],
    ids=", ".join,
)
def test_several_devices_divide_the_work_and_find_what_the_reference_finds(
    runs: dict[str, tuple[int, ...] | None], tmp_path: Path
) -> None:
    """In a process with 4 fake devices."""
    path = tmp_path / "results.npz"
    command = [sys.executable, "-m", "tests.model_server.kernels.gpu_on_meshes", str(path), *runs]
    subprocess.run(command, env=on_devices(4), cwd=ROOT, check=True, timeout=280)
    found, failures = dict(np.load(path)), Failures()
    for run, part in runs.items():
        with failures.of(run):
            np.testing.assert_allclose(found[run], found[f"{run}: reference"], rtol=0, atol=3e-5)
            assert part in (None, tuple(found[f"{run}: part"]))
    assert not failures, str(failures)
