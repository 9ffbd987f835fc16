"""What a process draws for its own devices when no other process helps it; one of a group of two.

    python -m tests.model_server.draws_on_meshes RESULTS.npz [PROCESS COORDINATOR]

The first loads a model that the second never loads. RESULTS.npz holds under `LEAF:START,START` what
a device of this process has of a leaf from there on. Without a group it holds whole leaves by name.
The number of devices comes from JAX_NUM_CPU_DEVICES.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels.pages import allocate
from model_server.loading.random_weights import random_weights
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.quantized import as_bytes
from model_server.models.weights.sharding import Layout, layout_of, own_device

CONFIG = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 160,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
PAGES = "pages"
KINDS = ("float32", "int4")


def recipe_of(kind: str) -> Recipe:
    """kind: float32 or a quantisation."""
    quantize = "null" if kind == "float32" else f'"{kind}"'
    made = make_recipe("auto", CONFIG, {"DTYPE": '"float32"', "QUANTIZE": quantize})
    assert isinstance(made, Recipe)
    return made


def arrays(kind: str, layout: Layout) -> Iterator[tuple[str, jax.Array]]:
    """Everything that a load puts on devices, by name; int4 as the bytes that a step takes."""
    recipe = recipe_of(kind)
    module = recipe.blueprint(layout)
    names = [f"{kind} {d.path} {leaf.part}" for d in module.declarations for leaf in d.leaves]
    leaves = random_weights(module.declarations, 5, lambda _: None, layout)
    yield from zip(names, map(as_bytes, leaves), strict=True)
    cache = recipe.cache(layout.shards("heads"))
    pages = allocate(cache, 3, 8, jnp.dtype("float32"), layout.pages)
    yield f"{kind} {PAGES}", pages[0].keys


def alone() -> dict[str, np.ndarray]:
    """Every leaf on one device."""
    layout = own_device()
    return {name: np.asarray(array) for kind in KINDS for name, array in arrays(kind, layout)}


def shared(process: str, coordinator: str) -> dict[str, np.ndarray]:
    """The parts of this process of a mesh of four devices."""
    jax.distributed.initialize(coordinator, 2, int(process))
    layout = layout_of((1, 2, 2)).placed()
    held: dict[str, np.ndarray] = {}
    for kind in KINDS if process == "0" else KINDS[1:]:
        for name, array in arrays(kind, layout):
            for shard in array.addressable_shards:
                begin = ",".join(str(part.start or 0) for part in shard.index)
                held[f"{name}:{begin}"] = np.asarray(shard.data)
    return held


if __name__ == "__main__":
    path, *group = sys.argv[1:]
    np.savez(path, **(shared(*group) if group else alone()))
