"""Experts in tiles against the same experts in blocks, from the drawing of their weights on."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from model_server.kernels.cpu import native
from model_server.loading import weights as loading
from model_server.loading.random_weights import random_weights
from model_server.models.layers.experts import Experts, ExpertSources
from model_server.models.layers.layers import ClampedGate, activation_of
from model_server.models.layers.routing import Routes
from model_server.models.weights.quantization import parse_quantize
from model_server.models.weights.source import Stacked, Tensor
from model_server.models.weights.weight import WeightForm, blueprint
from tests.each_case import Failures

COUNT, EMBED, FFW, TOKENS = 5, 64, 48, 7
SILU = activation_of("silu")
CASES: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    "int8": {"quantize": "int8"},
    "int4 in blocks": {"quantize": "int4:16"},
    "not gated": {"gated": False, "activation": activation_of("relu2")},
    "weighed inputs": {"weigh_inputs": True},
    "biases and clamps": {"biased": True, "activation": ClampedGate(7.0, 1.702)},
}


@pytest.fixture(autouse=True)
def needs_library() -> None:
    if not native.available():
        pytest.skip(native.described())


def made(
    *,
    tiles: bool,
    quantize: str | None = None,
    activation: Any = SILU,
    gated: bool = True,
    biased: bool = False,
    weigh_inputs: bool = False,
    ffw: int = FFW,
) -> Experts:
    def of(part: str) -> Stacked:
        return Stacked(tuple(Tensor(f"{expert}.{part}") for expert in range(COUNT)))

    biases = tuple((f"{part}.bias",) for part in ("gate", "up", "down"))
    sources = ExpertSources(
        count=COUNT,
        gate=of("gate") if gated else None,
        up=of("up"),
        down=of("down"),
        biases=biases if biased else None,  # pyright: ignore[reportArgumentType]
    )
    form = WeightForm(quantization=parse_quantize(quantize) if quantize else None, tiles=tiles)
    plan = blueprint(
        lambda: Experts(
            EMBED, ffw, sources, activation=activation, form=form, weigh_inputs=weigh_inputs
        )
    )
    return plan.assemble(random_weights(plan.declarations, 1, lambda _: None))


def some_routes() -> Routes:
    rng = np.random.default_rng(0)
    experts = np.stack([rng.permutation(COUNT - 1)[:3] for _ in range(TOKENS)])  # one is idle
    return Routes(
        jnp.asarray(experts, jnp.int32), jnp.asarray(rng.random((TOKENS, 3)), jnp.float32)
    )


def test_tiles_give_what_blocks_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_BAND", 2 * EMBED * FFW)  # two experts at once
    failures, x = Failures(), np.random.default_rng(1).normal(size=(TOKENS, EMBED))
    x = jnp.asarray(x, jnp.float32)
    for name, case in CASES.items():
        with failures.of(name):
            natively, plainly = (made(tiles=tiles, **case) for tiles in (True, False))
            assert natively.skips
            assert not plainly.skips
            wanted = np.asarray(plainly(x, some_routes()))
            allowed = 0.02 * np.abs(wanted).max()
            np.testing.assert_allclose(natively(x, some_routes()), wanted, 0, allowed)
    failures.end()


def test_a_token_has_its_bits_among_others_and_padding_gets_zeros() -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(size=(TOKENS, EMBED)), jnp.float32)
    experts, routes = made(tiles=True), some_routes()
    whole = np.asarray(experts(x, routes))
    experts.live = nnx.Variable(jnp.asarray([1, 4, -1, -1, -1, -1, -1], jnp.int32))
    few = np.asarray(experts(x.at[6].set(jnp.nan), routes))
    np.testing.assert_array_equal(few[[1, 4]], whole[[1, 4]])
    assert not few[[0, 2, 3, 5, 6]].any()
    experts.live = nnx.data(None)
    one = np.asarray(experts(x[4:5], Routes(*(each[4:5] for each in routes))))
    np.testing.assert_array_equal(one[0], whole[4])


def test_weights_of_which_one_does_not_fit_stay_with_xla() -> None:
    assert not made(tiles=True, ffw=40).skips, "a tile would have rows of two experts"
    assert not made(tiles=True, quantize="float8").skips
