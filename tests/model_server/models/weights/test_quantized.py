"""Products by quantised weights on a TPU: their results interpreted, their programs compiled.

A program may read a weight once, as small as it is stored: nothing as large is made or gathered.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from model_server.models.layers.layers import Embedding, Linear
from model_server.models.weights.quantization import parse_quantize
from model_server.models.weights.quantized import Quantized, as_bytes, byte_shape, unpacked
from model_server.models.weights.sharding import Layout, WeightPlacement, own_device
from model_server.models.weights.weight import WeightForm, blueprint
from tests.model_server.compiled_program import gathered_as_large_as, made_as_large_as
from tests.model_server.small_weights import packed_weight
from tests.model_server.tpu_compiler import compiled, mesh_of, needs_compiler
from tests.processes import on_devices

ROOT = Path(__file__).parents[4]
TPU = WeightPlacement("tpu", interpret=True)


_FORMS = [("int8", 1, False), ("int4", 1, False), ("int8", 8, True), ("float8", 2, False)]


@pytest.mark.parametrize(
    ("rows", "kind", "blocks", "offset"),
    [(1 if number % 2 else 40, *form) for number, form in enumerate(_FORMS)]
    + [
        pytest.param(40 if number % 2 else 1, *form, marks=pytest.mark.nightly)
        for number, form in enumerate(_FORMS)
    ],
)
def test_a_tpu_multiplies_by_what_the_numbers_stand_for(
    rows: int, kind: str, blocks: int, offset: bool
) -> None:
    packed, wide = packed_weight((256, 256), kind, blocks, offset=offset)
    x = np.random.default_rng(1).normal(size=(rows, 256)).astype(np.float32)
    weight = Quantized(*packed.arrays, jnp.float32, TPU)
    wanted = x @ wide.T
    found = np.asarray(jax.jit(lambda x: weight.project(x))(x))
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def test_blocks_that_the_kernel_cannot_take_are_multiplied_all_the_same() -> None:
    packed, wide = packed_weight((256, 768), "int8", 32)  # of 24
    x = np.random.default_rng(1).normal(size=(3, 768)).astype(np.float32)
    found = np.asarray(Quantized(*packed.arrays, jnp.float32, TPU).project(jnp.asarray(x)))
    np.testing.assert_allclose(found, x @ wide.T, atol=1e-4 * np.abs(x @ wide.T).max())


@pytest.mark.parametrize("place", [WeightPlacement(), TPU])
def test_rows_of_a_table_in_bytes_are_those_of_its_numbers(place: WeightPlacement) -> None:
    packed, wide = packed_weight((9, 64), "int4", 4)
    table = Quantized(*packed.arrays, jnp.bfloat16, place).on_program()
    np.testing.assert_allclose(table.rows(jnp.asarray([8, 0, 8])), wide[[8, 0, 8]], rtol=1e-6)


def test_the_platform_is_that_of_the_devices_not_of_this_process() -> None:
    packed, _ = packed_weight((256, 256), "int8", 8)

    def program(place: WeightPlacement) -> str:
        weight = Quantized(*packed.arrays, jnp.float32, place)
        return str(jax.make_jaxpr(weight.project)(jnp.zeros((4, 256))))

    assert "pallas_call" in program(TPU)
    assert "pallas_call" not in program(WeightPlacement("cpu"))
    assert "pallas_call" not in program(WeightPlacement("gpu"))


@pytest.fixture(scope="module")
def on_mesh() -> dict[str, float]:
    """What one process with four fake devices finds."""
    command = [sys.executable, "-m", "tests.model_server.models.products_on_mesh"]
    done = subprocess.run(
        command, env=on_devices(4), cwd=ROOT, check=True, timeout=280, capture_output=True
    )
    return json.loads(done.stdout)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_mesh_gives_what_one_device_gives(on_mesh: dict[str, float]) -> None:
    """Outputs, inputs, experts and widths divided, and rows of a step beside them."""
    assert len(on_mesh) == 30
    assert {case: found for case, found in on_mesh.items() if found > 1e-3} == {}


def _program(form: str, axes: tuple[str, str], rows: int, mesh: Any) -> tuple[Any, int]:
    """A product of 70B's size, and how many stored numbers or bytes a device holds."""
    outputs, inputs = (8192, 28672) if axes[0] == "embed" else (28672, 8192)
    layout = Layout(mesh)
    quantization: Any = None if form == "plain" else parse_quantize(form)
    held = WeightForm(layout=layout, quantization=quantization)
    module = blueprint(lambda: Linear(outputs, inputs, axes, form=held))
    x = jax.ShapeDtypeStruct((rows, inputs), jnp.float32, sharding=_everywhere(mesh))
    leaves = _shapes(module, layout)
    program = compiled(lambda leaves, x: module.assemble(leaves)(x), leaves, x)
    return program, leaves[0].size // mesh.size


def _shapes(module: Any, layout: Layout) -> list[Any]:
    return [
        byte_shape(
            jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=layout.sharding(leaf.shape, leaf.axes, leaf.bits)
            )
        )
        for declared in module.declarations
        for leaf in declared.leaves
    ]


def _everywhere(mesh: Any) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


_SLOW = [
    pytest.param(form, axes, rows, marks=pytest.mark.nightly)
    for form in ("plain", "int8", "float8", "int4", "int8:32", "int4:32")
    for axes in (("ffw", "embed"), ("embed", "ffw"))
    for rows in (8, 64, 320)
]


@needs_compiler
@pytest.mark.parametrize(
    ("form", "axes", "rows"),
    [
        ("plain", ("ffw", "embed"), 8),
        ("int4:32", ("embed", "ffw"), 8),
    ]
    + _SLOW,
)
def test_a_divided_weight_is_read_as_it_is_stored(
    form: str, axes: tuple[str, str], rows: int
) -> None:
    program, held = _program(form, axes, rows, mesh_of("v5e:2x2"))
    assert not made_as_large_as(program, held)
    assert not gathered_as_large_as(program, held // 8)
    memory: Any = program.memory_analysis()
    assert memory.temp_size_in_bytes < held // 2  # rows, not weights


@needs_compiler
def test_a_weight_divided_on_both_dimensions_is_not_gathered() -> None:
    program, held = _program("int4:32", ("ffw", "embed"), 64, mesh_of("v5e:2x2", (1, 2, 2)))
    assert not made_as_large_as(program, held)
    assert not gathered_as_large_as(program, held // 8)


@needs_compiler
def test_the_check_sees_a_widened_copy() -> None:
    """Block scales without the kernel, as XLA would do them."""
    mesh = mesh_of("v5e:2x2")
    divided = NamedSharding(mesh, PartitionSpec("model"))
    values = jax.ShapeDtypeStruct((8192, 28672), jnp.int8, sharding=divided)
    scales = jax.ShapeDtypeStruct((8192, 896), jnp.float32, sharding=divided)
    x = jax.ShapeDtypeStruct((8, 28672), jnp.float32, sharding=_everywhere(mesh))
    plainly = WeightPlacement("gpu", outputs="model")
    program = compiled(
        lambda x, v, s: Quantized(v, s, None, jnp.bfloat16, plainly).project(x), x, values, scales
    )
    assert made_as_large_as(program, values.size // 4)


@needs_compiler
@pytest.mark.parametrize(
    "form", ["int4:32", *(pytest.param(f, marks=pytest.mark.nightly) for f in ("plain", "int8"))]
)
def test_a_divided_table_gives_its_rows_and_stays_where_it_is(form: str) -> None:
    layout = Layout(mesh_of("v5e:2x2"))
    quantization: Any = None if form == "plain" else parse_quantize(form)
    held = WeightForm(layout=layout, quantization=quantization)
    module = blueprint(lambda: Embedding(128256, 8192, form=held))
    leaves = _shapes(module, layout)
    tokens = jax.ShapeDtypeStruct((64,), jnp.int32, sharding=_everywhere(layout.mesh))
    program = compiled(lambda leaves, t: module.assemble(leaves)(t), leaves, tokens)
    assert not made_as_large_as(program, leaves[0].size // 4)
    assert not gathered_as_large_as(program, leaves[0].size // 16)


NUMBERS = np.random.default_rng(0).integers(-8, 8, (3, 4, 6))


@pytest.mark.parametrize("shape", [(3, 4, 6), (12, 6), (72,)])
def test_bytes_hold_the_same_numbers(shape: tuple[int, ...]) -> None:
    numbers = NUMBERS.reshape(shape)
    placed = jax.device_put(
        numbers.astype(ml_dtypes.int4), own_device().sharding(shape, (None,) * len(shape))
    )
    carried = as_bytes(placed)
    assert carried.dtype == jnp.uint8
    assert carried.size == numbers.size // 2

    def widened(array: jax.Array) -> jax.Array:
        return unpacked(array).astype(jnp.int8)

    program = jax.jit(widened).lower(carried).compile()
    np.testing.assert_array_equal(program(carried), numbers)


def test_other_arrays_stay_as_they_are() -> None:
    plain = jnp.ones((2, 3), jnp.bfloat16)
    assert as_bytes(plain) is plain
    assert unpacked(plain) is plain
