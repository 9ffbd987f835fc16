"""Every family with its weights quantised as it is loaded (`QUANTIZE`).

It computes, with the kernels that servers use on this machine, what the numbers compute that its
weights stand for; and those are near the full ones. How near logits come says little of small
random models: where a router's scores lie close together, other experts are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.registry import make_recipe
from model_server.models.weights.quantized import Quantized, as_bytes
from model_server.models.weights.sharding import ONE_DEVICE, Layout, layout_of
from model_server.models.weights.weight import Blueprint
from tests.each_case import Failures
from tests.model_server.models.family_cases import (
    F32,
    checkpoint_of,
    config_of,
    first_of_each_family,
    golden_of,
    is_encoder,
)
from tests.model_server.tiny import logits_of

NAMES = [
    name
    for name in first_of_each_family()
    if "model_type" in config_of(name) and not is_encoder(name)
]
# Kind -> the most that a weight may differ from the full one, as a share of its length, and logits
# from those of full weights. Logits that have nothing in common differ by 1.4.
KINDS = {"int8": (0.01, 0.4), "float8": (0.04, 0.8), "int4": (0.17, 1.0)}


def _read(name: str, layout: Layout, **overrides: str) -> tuple[Blueprint, list[jax.Array], Any]:
    with closing(open_checkpoint(str(checkpoint_of(name)))) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, F32 | overrides)
        module = recipe.blueprint(layout, checkpoint)
        needed = without_prefixes(checkpoint, recipe.unused)
        over = None if layout is ONE_DEVICE else layout
        read = read_weights(module.declarations, needed, lambda _: None, over)
        return module, [as_bytes(leaf) for leaf in read], recipe


def _widened(module: Blueprint, leaves: list[jax.Array]) -> Iterator[jax.Array]:
    """Yield the numbers of each weight."""
    held = iter(leaves)
    for each in module.declarations:
        parts = [next(held) for _ in each.leaves]
        if each.packing is None:
            yield parts[0]
            continue
        values, scales, *offsets = parts
        packed = Quantized(values, scales, offsets[0] if offsets else None, jnp.float32)
        yield packed.dequantized()


def _shaken(numbers: list[jax.Array]) -> Iterator[jax.Array]:
    """Yield the numbers, each off by some 3e-5 of itself: twice what activations lose."""
    rng = np.random.default_rng(0)
    for each in numbers:
        noise = jnp.asarray(rng.normal(size=each.shape) * 3e-5, jnp.float32)
        yield (each * (1 + noise)).astype(each.dtype)


def _distance(one: Any, other: Any) -> float:
    found, wanted = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.nightly
@pytest.mark.timeout(900)  # three kinds, each compiled twice
@pytest.mark.parametrize("name", NAMES)
def test_quantised_weights_compute_what_their_numbers_compute(name: str) -> None:
    """Rows in int8 are multiplied by activations in two numbers of int8, which loses a little."""
    golden = golden_of(name)
    plain, full, recipe = _read(name, ONE_DEVICE)
    native, failures = layout_of((1, 1, 1)).placed(), Failures()
    whole = jax.jit(lambda module: logits_of(module, recipe, golden["prompt"]))
    for kind, (weights, logits) in KINDS.items():
        with failures.of(kind):
            module, leaves, _ = _read(name, ONE_DEVICE, QUANTIZE=f'"{kind}"')
            numbers = list(_widened(module, leaves))
            for each, found, wanted in zip(module.declarations, numbers, full, strict=True):
                if each.packing is not None and _distance(found, wanted) > weights:
                    failures.append(f"{kind}: {each.path} {_distance(found, wanted)}")
            stands_for = whole(plain.assemble(numbers))
            served, held, _ = _read(name, native, QUANTIZE=f'"{kind}"')
            lost = _distance(whole(served.assemble(held)), stands_for)
            if lost >= 1e-3:  # small random states may amplify any rounding
                moved = whole(plain.assemble(list(_shaken(numbers))))
                assert lost < _distance(moved, stands_for), lost
            assert _distance(stands_for, golden["logits"]) < logits
    failures.end()
