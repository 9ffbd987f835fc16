"""Experts in blocks against every expert for every token, on one device and on four."""

from __future__ import annotations

import json
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

from model_server.models.layers.expert_blocks import Kernels, in_blocks
from model_server.models.layers.layers import activation_of
from model_server.models.layers.routing import Routes
from model_server.models.weights.quantized import Quantized
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
