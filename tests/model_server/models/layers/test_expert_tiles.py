"""Experts in tiles, from a checkpoint on, against numpy."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.packed import Packing
from model_server.kernels.cpu import native
from model_server.loading import weights as loading
from model_server.models.layers.activations import Activation, ClampedGate, activation_of
from model_server.models.layers.experts import Experts, ExpertSources
from model_server.models.layers.routing import Routes
from model_server.models.weights.quantization import Scheme, quantize
from model_server.models.weights.source import Stacked, Tensor
from model_server.models.weights.weight import WeightForm, blueprint, take_one_byte
from tests.each_case import Failures

COUNT, EMBED, FFW, TOKENS, CHOSEN = 5, 64, 48, 7, 3
LIMIT, STEEPNESS = 1.0, 1.7
Halves = Callable[[np.ndarray, np.ndarray], np.ndarray]


def silu(x: np.ndarray, steepness: float = 1.0) -> np.ndarray:
    return x / (1 + np.exp(-steepness * x))


def clamped(opening: np.ndarray, up: np.ndarray) -> np.ndarray:
    return silu(np.minimum(opening, LIMIT), STEEPNESS) * (np.clip(up, -LIMIT, LIMIT) + 1)


class Case(NamedTuple):
    scheme: Scheme | None = None
    one_byte: bool = False
    activation: Activation = activation_of("silu")
    gated: bool = True
    biased: bool = False
    weigh_inputs: bool = False
    both: Halves = lambda opening, up: silu(opening) * up


CASES = {
    "bfloat16": Case(),
    "int8": Case(Scheme("int8", None)),
    "int4 in blocks": Case(Scheme("int4", 16)),
    "int4 times numbers of one byte": Case(Scheme("int4", 16), one_byte=True),
    "not gated": Case(
        gated=False, activation=activation_of("relu2"), both=lambda _, up: np.maximum(up, 0) ** 2
    ),
    "weighed inputs": Case(weigh_inputs=True),
    "biases and clamps": Case(biased=True, activation=ClampedGate(LIMIT, STEEPNESS), both=clamped),
}


@pytest.fixture(autouse=True)
def needs_library() -> None:
    if not native.available():
        pytest.skip(native.described())


def stored(ffw: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = {"gate": (ffw, EMBED), "up": (ffw, EMBED), "down": (EMBED, ffw)}
    made = {
        f"{expert}.{part}": rng.normal(size=size) / 8
        for part, size in sizes.items()
        for expert in range(COUNT)
    }
    made |= {f"{part}.bias": rng.normal(size=(COUNT, size[0])) for part, size in sizes.items()}
    return {name: array.astype(np.float32) for name, array in made.items()}


def experts_of(case: Case, folder: Path, ffw: int = FFW) -> Experts:
    def of(part: str) -> Stacked:
        return Stacked(tuple(Tensor(f"{expert}.{part}") for expert in range(COUNT)))

    sources = ExpertSources(
        count=COUNT,
        gate=of("gate") if case.gated else None,
        up=of("up"),
        down=of("down"),
        biases=(("gate.bias",), ("up.bias",), ("down.bias",)) if case.biased else None,
    )
    form = WeightForm(jnp.dtype(jnp.bfloat16), quantization=case.scheme, tiles=True)
    how = {"activation": case.activation, "form": form, "weigh_inputs": case.weigh_inputs}

    def built() -> Experts:
        made = Experts(EMBED, ffw, sources, **how)
        if case.one_byte:
            assert take_one_byte(made)
        return made

    plan = blueprint(built)
    names = {name for weight in plan.declarations for name in weight.source.names}
    folder.mkdir()
    kept = {name: array for name, array in stored(ffw).items() if name in names}
    save_file(kept, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "mixtral"}))
    with closing(open_checkpoint(str(folder))) as checkpoint:
        return plan.assemble(loading.read_weights(plan.declarations, checkpoint, lambda _: None))


def plainly(case: Case, x: np.ndarray, routes: Routes) -> np.ndarray:
    weights, made = stored(FFW), np.zeros((TOKENS, EMBED))

    def product(seen: np.ndarray, expert: int, part: str) -> np.ndarray:
        weight = weights[f"{expert}.{part}"]
        if case.scheme is not None:
            packing = Packing(
                case.scheme.kind, case.scheme.block, offset=case.scheme.kind == "int4"
            )
            weight = quantize(weight, packing).dequantized()
        return weight @ seen + (weights[f"{part}.bias"][expert] if case.biased else 0)

    for token in range(TOKENS):
        for expert, share in zip(*(np.asarray(each)[token] for each in routes), strict=True):
            seen = x[token] * share if case.weigh_inputs else x[token]
            opening, up = (product(seen, expert, part) for part in ("gate", "up"))
            given = product(case.both(opening, up), expert, "down")
            made[token] += given if case.weigh_inputs else given * share
    return made


def some_routes() -> Routes:
    rng = np.random.default_rng(0)
    chosen = [rng.permutation(COUNT - 1)[:CHOSEN] for _ in range(TOKENS)]  # one expert is idle
    shares = rng.random((TOKENS, CHOSEN)).astype(np.float32)
    return Routes(jnp.asarray(np.stack(chosen), jnp.int32), jnp.asarray(shares))


def some_tokens() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(TOKENS, EMBED)).astype(np.float32)


def test_tokens_get_what_their_experts_give(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loading, "_BAND", 2 * EMBED * FFW)  # two experts are read at once
    failures, x = Failures(), some_tokens()
    for name, case in CASES.items():
        with failures.of(name):
            experts = experts_of(case, tmp_path / name)
            assert experts.in_tiles
            wanted = plainly(case, x, some_routes())
            made: Any = experts(jnp.asarray(x), some_routes())
            np.testing.assert_allclose(made, wanted, 0, 0.02 * np.abs(wanted).max())
    failures.end()


def test_a_token_has_its_bits_among_others_and_padding_gets_zeros(tmp_path: Path) -> None:
    experts, routes = experts_of(Case(), tmp_path / "experts"), some_routes()
    x = some_tokens()
    whole = np.asarray(experts(jnp.asarray(x), routes))
    experts.live = nnx.Variable(jnp.asarray([1, 4, -1, -1, -1, -1, -1], jnp.int32))
    x[6] = np.nan
    few = np.asarray(experts(jnp.asarray(x), routes))
    np.testing.assert_array_equal(few[[1, 4]], whole[[1, 4]])
    assert not few[[0, 2, 3, 5, 6]].any()
    experts.live = nnx.data(None)
    two = np.asarray(experts(jnp.asarray(x[4:6]), Routes(*(each[4:6] for each in routes))))
    np.testing.assert_array_equal(two, whole[4:6])


def test_weights_of_which_one_does_not_fit_stay_with_xla(tmp_path: Path) -> None:
    assert not experts_of(Case(), tmp_path / "a", ffw=40).in_tiles, "a tile would have two experts"
    assert not experts_of(Case(Scheme("float8_e4m3fn", None)), tmp_path / "b").in_tiles
