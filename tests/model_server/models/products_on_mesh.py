"""TPU products in interpret mode on a mesh of four fake devices; prints what the tests assert.

A process of its own, because the number of devices is fixed before jax starts.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from model_server.models.layers.experts import Experts, ExpertSources
from model_server.models.layers.layers import Linear
from model_server.models.weights.quantization import parse_quantize, quantize
from model_server.models.weights.quantized import Quantized, as_bytes
from model_server.models.weights.sharding import Layout, layout_of
from model_server.models.weights.source import Stacked, Tensor
from model_server.models.weights.weight import WeightForm, blueprint
from tests.model_server.models.layers.test_experts import some_routes

ROWS = 8


def as_on_tpu(module: Any) -> Any:
    """The same module with what a TPU would run, interpreted."""

    def moved(value: Any) -> Any:
        if not isinstance(value, Quantized):
            return value
        return replace(value, place=replace(value.place, platform="tpu", interpret=True))

    graph, state = nnx.split(module)
    state = jax.tree.map(moved, state, is_leaf=lambda value: isinstance(value, Quantized))
    module = nnx.merge(graph, state)
    if isinstance(module, Experts):
        module.division = replace(module.division, platform="tpu", interpret=True)
    return module


def made(build: Any, layout: Layout, inputs: int, *more: Any, tpu: bool) -> np.ndarray:
    """What the module gives some rows, with random weights that are the same on every mesh."""
    module = blueprint(build)
    rng, leaves = np.random.default_rng(0), []
    for declared in module.declarations:
        numbers = rng.normal(size=declared.shape).astype(np.float32) / 16
        packed: Any = declared.packing and quantize(numbers, declared.packing)
        for leaf in declared.leaves:
            array = jnp.asarray(getattr(packed, leaf.part) if packed else numbers, leaf.dtype)
            place = layout.sharding(leaf.shape, leaf.axes, leaf.bits)
            leaves.append(as_bytes(jax.device_put(array, place)))
    x = rng.normal(size=(ROWS, inputs)).astype(np.float32)
    rows = NamedSharding(layout.mesh, PartitionSpec(layout.axis("tokens")))

    def run(leaves: Any, x: jax.Array, *more: Any) -> jax.Array:
        model = module.assemble(leaves)
        return (as_on_tpu(model) if tpu else model)(x, *more)

    return np.asarray(jax.jit(run)(leaves, jax.device_put(x, rows), *more))


def linear(form: str, axes: tuple[str, str], layout: Layout, tpu: bool) -> np.ndarray:
    quantization: Any = parse_quantize(form)
    held = WeightForm(jnp.dtype("float32"), layout, quantization)
    return made(lambda: Linear(256, 512, axes, form=held), layout, 512, tpu=tpu)


def experts(form: str, layout: Layout, tpu: bool, count: int) -> np.ndarray:
    quantization: Any = None if form == "float32" else parse_quantize(form)
    held = WeightForm(jnp.dtype("float32"), layout, quantization)
    parts = Stacked(tuple(Tensor(f"{expert}") for expert in range(count)))
    sources = ExpertSources(count=count, gate=parts, up=parts, down=parts)

    def build() -> nnx.Module:
        return Experts(256, 512, sources, activation=jax.nn.silu, form=held)

    return made(build, layout, 256, some_routes(ROWS, count, 2), tpu=tpu)


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def main() -> None:
    rules = replace(layout_of().rules, tokens="replica")
    alone = layout_of().placed()
    divided = {
        "4 on model": layout_of((1, 1, 4)).placed(),
        "2 on data, 2 on model": layout_of((1, 2, 2)).placed(),
        "rows on 2, 2 on model": layout_of((2, 1, 2), rules).placed(),
    }
    found: dict[str, float] = {}
    for form in ("int8:32", "int4:32", "int4"):
        for axes in (("ffw", "embed"), ("embed", "ffw")):
            wanted = linear(form, axes, alone, tpu=False)
            for mesh, layout in divided.items():
                found[f"{form} {axes[0]} {mesh}"] = difference(
                    linear(form, axes, layout, True), wanted
                )
    for form, count in (("float32", 4), ("int8", 3), ("int4:32", 4), ("int4:32", 3)):
        wanted = experts(form, alone, False, count)
        for mesh, layout in divided.items():
            found[f"{count} experts {form} {mesh}"] = difference(
                experts(form, layout, True, count), wanted
            )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
