"""Experts on a mesh of four fake devices; prints what test_experts.py asserts, as JSON.

Its arguments are golden cases of which a layer is compiled.

A process of its own, because the number of devices is fixed before jax starts.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from model_server.kernels import xla
from model_server.kernels.pages import LayerPages, allocate
from model_server.models.layers.experts import Experts, ExpertSources
from model_server.models.layers.routing import Routes
from model_server.models.registry import make_recipe
from model_server.models.weights.quantization import parse_quantize, quantize
from model_server.models.weights.sharding import Layout, layout_of
from model_server.models.weights.source import Stacked, Tensor
from model_server.models.weights.weight import Blueprint, WeightForm, blueprint
from tests.model_server.models.family_cases import config_of
from tests.model_server.models.layers.test_experts import some_kernels, some_routes
from tests.model_server.tiny import PAGE, one_prompt

LAYOUT = layout_of((1, 1, 4)).placed()
EVERYWHERE = NamedSharding(LAYOUT.mesh, PartitionSpec())
TOKENS, EMBED = 9, 12
_COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def collectives(case: str) -> list[str]:
    """What the devices exchange in the last layer of a golden case, over a prompt of 32 tokens."""
    recipe: Any = make_recipe("auto", config_of(case), {"DTYPE": '"float32"'})
    module, cache = recipe.blueprint(LAYOUT), recipe.cache(4)
    pages = allocate(cache, 32 // PAGE, PAGE, jnp.dtype("float32"), LAYOUT.pages)[-1]

    def last_layer(leaves: Any, pages: LayerPages, x: jax.Array) -> Any:
        model = module.assemble(leaves)
        rotation = model.ropes[-1].at(jnp.arange(33) - 1)
        return model.layers[-1](x, rotation, pages, one_prompt(32, xla.KERNEL))

    shapes = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=LAYOUT.sharding(x.shape, x.axes))
        for declared in module.declarations
        for x in declared.leaves
    ]
    hidden = jax.ShapeDtypeStruct((33, recipe.embed), jnp.float32, sharding=EVERYWHERE)
    compiled = jax.jit(last_layer, donate_argnums=1).lower(shapes, pages, hidden).compile()
    return _COLLECTIVE.findall(str(compiled.as_text()))


def difference(experts: int, form: str) -> float:
    """Between one device and four, relative to the largest number."""
    alone, spread = (_made(experts, form, shards) for shards in (1, 4))
    return float(np.abs(alone - spread).max() / np.abs(alone).max())


def _made(experts: int, form: str, shards: int) -> np.ndarray:
    layout = layout_of((1, 1, shards)).placed()
    module = _module(experts, form, layout)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(TOKENS, EMBED)), jnp.float32)
    leaves = _leaves(module, _width(experts), form, layout)

    def run(leaves: Any, x: jax.Array, routes: Routes) -> jax.Array:
        return module.assemble(leaves)(x, routes)

    arguments = leaves, x, some_routes(TOKENS, experts, 2)
    return np.asarray(jax.jit(run)(*arguments))


def _width(experts: int) -> int:
    return 15 if experts == 5 else 16


def _module(experts: int, form: str, layout: Layout) -> Blueprint:
    quantization: Any = None if form == "float32" else parse_quantize(form)
    parts = Stacked(tuple(Tensor(f"{expert}") for expert in range(experts)))

    def build() -> nnx.Module:
        return Experts(
            EMBED,
            _width(experts),
            ExpertSources(count=experts, gate=parts, up=parts, down=parts),
            activation=jax.nn.silu,
            form=WeightForm(dtype=jnp.float32, layout=layout, quantization=quantization),
        )

    return blueprint(build)


def _leaves(module: Blueprint, width: int, form: str, layout: Layout) -> list[jax.Array]:
    """The numbers of `some_kernels`, put where the loader puts them."""
    experts = module.declarations[0].shape[0]
    kernels = some_kernels(experts, EMBED, width)._asdict()
    placed = []
    for declared in module.declarations:
        numbers: Any = np.asarray(kernels[declared.path])
        packed: Any = declared.packing and quantize(numbers, declared.packing)
        for leaf in declared.leaves:
            array = jnp.asarray(getattr(packed, leaf.part) if packed else numbers, leaf.dtype)
            placed.append(jax.device_put(array, layout.sharding(leaf.shape, leaf.axes)))
    return placed


def held(experts: int) -> list[int]:
    """Of the gates' kernel, by the first device."""
    leaves = _leaves(_module(experts, "float32", LAYOUT), _width(experts), "float32", LAYOUT)
    gate = next(x for x in leaves if x.shape[1:] == (_width(experts), EMBED))
    return list(gate.addressable_shards[0].data.shape)


def main(*cases: str) -> None:
    forms, counts = ("float32", "int8", "int8:8"), (8, 6, 5)
    found = {
        "collectives": {case: collectives(case) for case in cases},
        "differences": {f"{n} {form}": difference(n, form) for n in counts for form in forms},
        "held": {str(n): held(n) for n in counts},
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
