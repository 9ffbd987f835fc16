"""Experts in blocks against every expert for every token, on one device and on four."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from model_server.checkpoints.packed import FLOAT4, Packing
from model_server.models.layers.activations import ClampedGate, activation_of
from model_server.models.layers.expert_blocks import ExpertBiases, Kernels, in_blocks
from model_server.models.layers.experts import Experts, ExpertSources
from model_server.models.layers.routing import Routes
from model_server.models.layers.sorted_experts import in_groups
from model_server.models.weights.quantization import AsStored, parse_quantize
from model_server.models.weights.quantized import Quantized, byte_shape
from model_server.models.weights.sharding import Layout
from model_server.models.weights.source import Stacked, Tensor
from model_server.models.weights.weight import Blueprint, WeightForm, blueprint
from tests.model_server.compiled_program import (
    brought_as_large_as,
    gathered_as_large_as,
    made_as_large_as,
)
from tests.model_server.small_weights import packed_weight
from tests.model_server.tpu_compiler import CHIPS, compiled, mesh_of, needs_compiler, one_device
from tests.processes import on_devices

ROOT = Path(__file__).parents[4]


def some_kernels(experts: int, embed: int, ffw: int, seed: int = 0) -> Kernels:
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape) / shape[-1] ** 0.5, jnp.float32)

    sizes = (experts, ffw, embed)
    return Kernels(numbers(*sizes), numbers(*sizes), numbers(experts, embed, ffw))


def some_routes(tokens: int, experts: int, count: int, seed: int = 0) -> Routes:
    """Different experts for each token, drawn so that some get many tokens and some none."""
    rng = np.random.default_rng(seed)
    liked = rng.normal(size=(tokens, experts)) + 2 * rng.normal(size=experts)
    chosen = np.argsort(liked, axis=1)[:, :count]
    return Routes(jnp.asarray(chosen, jnp.int32), jnp.asarray(rng.random((tokens, count))))


def plainly(x: Any, routes: Routes, kernels: Kernels) -> np.ndarray:
    """Token by token, route by route."""
    gate, up, down = (np.asarray(k, np.float64) for k in kernels)
    out = np.zeros(x.shape)
    for t, (experts, weights) in enumerate(zip(*map(np.asarray, routes), strict=True)):
        for expert, share in zip(experts, weights, strict=True):
            gated = np.asarray(jax.nn.silu(gate[expert] @ x[t])) * (up[expert] @ x[t])
            out[t] += share * (down[expert] @ gated)
    return out


def blocks(x: Any, routes: Routes, kernels: Kernels, first: int = 0, among: int = 0) -> np.ndarray:
    among = among or len(jax.tree.leaves(kernels)[0])
    run = jax.jit(lambda *a: in_blocks(*a, jax.nn.silu, first, among))
    return np.asarray(run(jnp.asarray(x), routes, kernels))


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([1, 2, 33]), st.sampled_from([1, 6, 17]), st.integers(0, 9), st.data())
def test_blocks_give_what_each_token_gets_alone(
    tokens: int, experts: int, seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, min(experts, 4)))
    x = np.random.default_rng(seed).normal(size=(tokens, 6)).astype(np.float32)
    kernels = some_kernels(experts, embed=6, ffw=5, seed=seed)
    routes = some_routes(tokens, experts, count, seed)
    np.testing.assert_allclose(
        blocks(x, routes, kernels), plainly(x, routes, kernels), rtol=1e-4, atol=1e-5
    )


def test_experts_without_a_gate_square_a_relu_as_if_gate_and_up_were_one() -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(size=(9, 6)), jnp.float32)
    kernels, routes = some_kernels(5, 6, 4), some_routes(9, 5, 2)
    alike = kernels._replace(gate=kernels.up)
    wanted = jax.jit(lambda *a: in_blocks(*a, jax.nn.relu, 0, 5))(x, routes, alike)
    squared = activation_of("relu2")
    ungated = kernels._replace(gate=None)
    found = jax.jit(lambda *a: in_blocks(*a, squared, 0, 5))(x, routes, ungated)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_parts_of_the_experts_add_up_to_all_of_them() -> None:
    x = np.random.default_rng(1).normal(size=(9, 6)).astype(np.float32)
    kernels, routes = some_kernels(5, 6, 4), some_routes(9, 5, 2)
    low, high = Kernels(*(k[:2] for k in kernels)), Kernels(*(k[2:] for k in kernels))
    parts = blocks(x, routes, low, 0, 5) + blocks(x, routes, high, 2, 5)
    np.testing.assert_allclose(parts, blocks(x, routes, kernels), rtol=1e-5, atol=1e-6)


def test_all_tokens_may_want_the_same_expert() -> None:
    x = np.random.default_rng(2).normal(size=(200, 6)).astype(np.float32)
    kernels = some_kernels(8, 6, 4)
    routes = Routes(jnp.full((200, 1), 7, jnp.int32), jnp.ones((200, 1)))
    np.testing.assert_allclose(
        blocks(x, routes, kernels), plainly(x, routes, kernels), rtol=1e-4, atol=1e-5
    )


def test_an_idle_row_disturbs_no_other_whatever_it_holds() -> None:
    x = np.random.default_rng(3).normal(size=(7, 6)).astype(np.float32)
    kernels, routes = some_kernels(4, 6, 4), some_routes(7, 4, 2)
    wanted = blocks(x, routes, kernels)
    x[3] = np.nan
    found = blocks(x, routes, kernels)
    others = [0, 1, 2, 4, 5, 6]
    np.testing.assert_array_equal(found[others], wanted[others])


@pytest.mark.parametrize(
    ("kind", "block"),
    [
        ("int8", 8),
        ("int4", 2),
        pytest.param("float8_e4m3fn", 8, marks=pytest.mark.nightly),
        pytest.param("float8_e4m3fn", 2, marks=pytest.mark.nightly),
    ],
)
def test_quantised_experts_give_what_their_dequantised_weights_give(kind: str, block: int) -> None:
    x = np.random.default_rng(4).normal(size=(5, 8)).astype(np.float32)
    small = Kernels(*(quantised(k, kind, block) for k in some_kernels(6, 8, 8)))
    wide = Kernels(*(k.dequantized() for k in small))
    routes = some_routes(5, 6, 2)
    wanted = plainly(x, routes, wide)
    np.testing.assert_allclose(
        blocks(x, routes, Kernels(*small)), wanted, atol=2e-3 * np.abs(wanted).max()
    )


def quantised(kernel: Any, kind: str, block: int) -> Quantized:
    blocked = kernel.reshape(*kernel.shape[:2], -1, block)
    scales = jnp.abs(blocked).max(-1) / 7
    values = jnp.round(blocked / scales[..., None]).reshape(kernel.shape)
    return Quantized(values.astype(getattr(jnp, kind)), scales, None, jnp.float32)


def test_the_weights_are_read_once_whatever_their_dtype() -> None:
    """XLA:CPU would widen all bfloat16 experts before the loop over a few of them."""
    kernels = jax.tree.map(lambda k: k.astype(jnp.bfloat16), some_kernels(64, 32, 16))
    run = jax.jit(lambda *a: in_blocks(*a, jax.nn.silu, 0, 64))
    compiled = run.lower(jnp.zeros((1, 32)), some_routes(1, 64, 2), kernels).compile()
    all_experts_wide = 4 * sum(k.size for k in kernels)
    memory: Any = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < all_experts_wide / 4


def found_on_mesh(*cases: str) -> dict[str, Any]:
    """What one process with four fake devices finds, with a layer of each of these cases."""
    command = [sys.executable, "-m", "tests.model_server.models.experts_on_mesh", *cases]
    done = subprocess.run(
        command, env=on_devices(4), cwd=ROOT, check=True, timeout=280, capture_output=True
    )
    return json.loads(done.stdout)


# Experts that divide by four; six experts, so that widths divide; latent attention before them.
@pytest.mark.parametrize(
    "cases",
    [
        ["qwen3_moe"],
        pytest.param(["mixtral_window", "deepseek_v3"], marks=pytest.mark.nightly),
    ],
)
def test_a_mesh_gives_what_one_device_gives_and_a_layer_gathers_nothing(cases: list[str]) -> None:
    """Also where neither experts nor widths divide, or widths only where they cut no block.

    Each half of a layer ends in a sum over the devices, and that is all that they exchange.
    """
    found = found_on_mesh(*cases)
    assert {case: set(names) for case, names in found["collectives"].items()} == {
        case: {"all-reduce"} for case in cases
    }
    assert len(found["differences"]) == 9
    assert {case: far for case, far in found["differences"].items() if far >= 2e-3} == {}
    # A device holds its own experts only.
    assert found["held"] == {"8": [2, 16, 12], "6": [6, 4, 12], "5": [5, 15, 12]}


def some_experts(kind: str, blocks: int) -> Kernels:
    if kind == "float32":
        return some_kernels(6, 256, 128)
    up = [packed_weight((6, 128, 256), kind, blocks, offset=blocks > 1, seed=i)[0] for i in (0, 1)]
    down, _ = packed_weight((6, 256, 128), kind, max(1, blocks // 2), seed=2)
    return Kernels(*(Quantized(*packed.arrays, jnp.float32).on_program() for packed in (*up, down)))


def groups(x: Any, routes: Routes, kernels: Kernels, first: int = 0) -> np.ndarray:
    run = jax.jit(lambda *a: in_groups(*a, jax.nn.silu, first, interpret=True))
    return np.asarray(run(jnp.asarray(x), routes, kernels))


def blocks_of(x: Any, routes: Routes, kernels: Kernels) -> np.ndarray:
    return np.asarray(jax.jit(lambda *a: in_blocks(*a, jax.nn.silu, 0, 6))(x, routes, kernels))


def some_rows(tokens: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(tokens, 256)).astype(np.float32) / 16


_KINDS = [("float32", 1), ("int8", 1), ("int8", 8), ("int4", 4)]


@pytest.mark.parametrize(
    ("kind", "blocks", "tokens"),
    [("float32", 1, 1), ("int4", 4, 70)]
    + [pytest.param(*kind, n, marks=pytest.mark.nightly) for kind in _KINDS for n in (1, 8, 70)],
)
def test_groups_give_what_blocks_give(kind: str, blocks: int, tokens: int) -> None:
    x, kernels, routes = some_rows(tokens), some_experts(kind, blocks), some_routes(tokens, 6, 2)
    wanted = blocks_of(x, routes, kernels)
    found = groups(x, routes, kernels)
    np.testing.assert_allclose(found, wanted, atol=2e-3 * np.abs(wanted).max())


def float4_experts() -> Kernels:
    """As gpt-oss has them: the bits of numbers, and powers of two for 32 of them each."""
    rng = np.random.default_rng(4)

    def held(*shape: int) -> Quantized:
        bits = jnp.asarray(rng.integers(-8, 8, shape), jnp.int4)
        powers = 2.0 ** rng.integers(-5, -2, (*shape[:2], shape[2] // 32))
        return Quantized(bits, jnp.asarray(powers, jnp.bfloat16), None, jnp.float32)

    return Kernels(held(6, 128, 256), held(6, 128, 256), held(6, 256, 128))


def some_biases() -> ExpertBiases:
    gate, up = np.random.default_rng(5).normal(size=(2, 6, 128)).astype(np.float32)
    return ExpertBiases(jnp.asarray(gate), jnp.asarray(up))


@pytest.mark.parametrize(
    ("kind", "weigh_inputs"),
    [
        ("float32", True),
        pytest.param("float32", False, marks=pytest.mark.nightly),
        pytest.param("float4", True, marks=pytest.mark.nightly),
        ("float4", False),
    ],
)
def test_groups_add_biases_and_weigh_as_blocks_do(kind: str, weigh_inputs: bool) -> None:
    kernels = float4_experts() if kind == "float4" else some_experts(kind, 1)
    x, routes = jnp.asarray(some_rows(9)), some_routes(9, 6, 2)
    gate, more = ClampedGate(0.5, 1.7), {"biases": some_biases(), "weigh_inputs": weigh_inputs}
    wanted = jax.jit(lambda *a: in_blocks(*a, gate, 0, 6, **more))(x, routes, kernels)
    found = jax.jit(lambda *a: in_groups(*a, gate, 0, interpret=True, **more))(x, routes, kernels)
    np.testing.assert_allclose(found, wanted, atol=2e-3 * np.abs(wanted).max())


def test_groups_without_a_gate_give_what_blocks_give() -> None:
    kernels = some_experts("float32", 1)._replace(gate=None)
    x, routes, squared = some_rows(9), some_routes(9, 6, 2), activation_of("relu2")
    wanted = jax.jit(lambda *a: in_blocks(*a, squared, 0, 6))(x, routes, kernels)
    found = jax.jit(lambda *a: in_groups(*a, squared, 0, interpret=True))(x, routes, kernels)
    np.testing.assert_allclose(found, wanted, atol=2e-3 * np.abs(wanted).max())


def test_float4_numbers_are_multiplied_as_they_are() -> None:
    kernels = float4_experts()
    wide = Kernels(*(jnp.asarray(k.dequantized()) for k in kernels))
    x, routes = some_rows(5), some_routes(5, 6, 2)
    wanted = blocks_of(x, routes, wide)
    for found in (blocks_of(x, routes, kernels), groups(x, routes, kernels)):
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


def test_parts_of_the_experts_add_up_to_all_of_them_where_routes_are_sorted() -> None:
    x, kernels, routes = some_rows(9), some_experts("float32", 1), some_routes(9, 6, 2)
    low, high = (Kernels(*(k[part] for k in kernels)) for part in (slice(0, 2), slice(2, 6)))
    parts = groups(x, routes, low, 0) + groups(x, routes, high, 2)
    np.testing.assert_allclose(parts, blocks_of(x, routes, kernels), rtol=1e-4, atol=1e-5)


def test_experts_that_no_token_wants_give_nothing() -> None:
    kernels = some_experts("float32", 1)
    routes = Routes(jnp.full((5, 1), 3, jnp.int32), jnp.ones((5, 1)))
    assert not groups(some_rows(5), routes, Kernels(*(k[:2] for k in kernels))).any()


def test_an_idle_row_disturbs_no_other_whatever_it_holds_where_routes_are_sorted() -> None:
    x, kernels, routes = some_rows(7), some_experts("float32", 1), some_routes(7, 6, 2)
    wanted = groups(x, routes, kernels)
    x[3] = np.nan
    weights = routes.weights.at[3].set(jnp.nan)
    found = groups(x, routes._replace(weights=weights), kernels)
    others = [0, 1, 2, 4, 5, 6]
    np.testing.assert_array_equal(found[others], wanted[others])


def _program(
    mesh: Any, form: str, tokens: int, ffw: int = 14336, count: int = 8
) -> tuple[Any, int]:
    """A layer of Mixtral's experts, and how many stored numbers or bytes of a kernel are held."""
    layout = Layout(mesh)
    quantization: Any = None if form == "plain" else parse_quantize(form)
    parts = Stacked(tuple(Tensor(f"{expert}") for expert in range(count)))
    sources = ExpertSources(count=count, gate=parts, up=parts, down=parts)
    held = WeightForm(layout=layout, quantization=quantization)
    module = blueprint(lambda: Experts(4096, ffw, sources, activation=jax.nn.silu, form=held))
    return _compiled_module(module, layout, tokens, 4096)


def _program_of_gpt_oss(mesh: Any, tokens: int) -> tuple[Any, int]:
    """A layer of its experts, as above."""
    layout = Layout(mesh)
    parts, bias = Tensor("matrices"), Tensor("bias")
    sources = ExpertSources(count=32, gate=parts, up=parts, down=parts, biases=(bias, bias, bias))
    form = WeightForm(layout=layout, quantization=AsStored(lambda _: Packing(FLOAT4, 32, False)))
    gate = ClampedGate(7.0, 1.702)
    module = blueprint(lambda: Experts(2880, 2880, sources, activation=gate, form=form))
    return _compiled_module(module, layout, tokens, 2880)


def _compiled_module(module: Blueprint, layout: Layout, tokens: int, embed: int) -> tuple[Any, int]:
    mesh: Any = layout.mesh
    leaves = [
        byte_shape(
            jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=layout.sharding(leaf.shape, leaf.axes, leaf.bits)
            )
        )
        for declared in module.declarations
        for leaf in declared.leaves
    ]

    def shape(dimensions: tuple[int, ...], dtype: Any) -> Any:
        everywhere = NamedSharding(mesh, PartitionSpec())
        return jax.ShapeDtypeStruct(dimensions, dtype, sharding=everywhere)

    routes = Routes(shape((tokens, 2), jnp.int32), shape((tokens, 2), jnp.float32))
    x = shape((tokens, embed), jnp.float32)
    program = compiled(lambda leaves, x, r: module.assemble(leaves)(x, r), leaves, x, routes)
    return program, leaves[0].size // mesh.size


@needs_compiler
@pytest.mark.parametrize(
    ("form", "shape", "count"),
    [
        ("int8", (1, 1, 4), 8),
        pytest.param("plain", (1, 1, 4), 8, marks=pytest.mark.nightly),
        pytest.param("int4:32", (1, 1, 4), 8, marks=pytest.mark.nightly),
        pytest.param("int4:32", (1, 2, 2), 6, marks=pytest.mark.nightly),
        pytest.param("int8", (1, 1, 4), 6, marks=pytest.mark.nightly),  # their widths are divided
    ],
)
def test_divided_experts_are_read_where_they_lie_and_only_when_wanted(
    form: str, shape: tuple[int, int, int], count: int
) -> None:
    program, held = _program(mesh_of("v5e:2x2", shape), form, 8, count=count)
    assert not made_as_large_as(program, held // 8)
    assert not brought_as_large_as(program, held // 8)
    assert not gathered_as_large_as(program, held // 64)


@needs_compiler
@pytest.mark.nightly
def test_float4_experts_are_read_as_they_are_stored() -> None:
    program, held = _program_of_gpt_oss(one_device("v5e"), 8)
    assert not made_as_large_as(program, held // 8)
    scales = held // 16  # eight experts' would rather lie beside their outputs
    program, held = _program_of_gpt_oss(mesh_of("v5e:2x2", (1, 1, 4)), 8)
    assert not made_as_large_as(program, scales // 4)


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("chip", CHIPS)
def test_every_chip_compiles_float4_experts(chip: str) -> None:
    program, held = _program_of_gpt_oss(one_device(chip), 8)
    memory: Any = program.memory_analysis()
    assert memory.temp_size_in_bytes < held // 8


@needs_compiler
def test_what_experts_multiply_before_their_last_product_is_kept_in_two_bytes() -> None:
    program, _ = _program(one_device("v5e"), "plain", 320, ffw=1792)
    kept = set(re.findall(r"(\w+)\[\d+,1792\]", program.as_text()))
    assert kept == {"bf16"}


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("form", ["plain", "int8", "int4:32"])
@pytest.mark.parametrize("tokens", [8, 320])
def test_every_chip_compiles_experts_in_groups(chip: str, form: str, tokens: int) -> None:
    program, _ = _program(one_device(chip), form, tokens, ffw=14336 // 8)
    # Not every chip's program can be read: jaxlib 0.10 knows not all that libtpu 0.0.52 writes.
    memory: Any = program.memory_analysis()
    one_kernel_wide = 2 * 8 * 14336 // 8 * 4096
    assert memory.temp_size_in_bytes < one_kernel_wide // 2
