"""Runs golden cases on meshes of fake devices and saves their logits; a process of its own.

The number of devices is fixed before jax starts, so tests call this as a script:

    python -m tests.model_server.models.on_meshes RESULTS.npz CASE:1x1x2 CASE:1x2x4 ...

RESULTS.npz holds, under each of these names, logits f32[S, V]; under `NAME share`, how much of the
weights the device with most of them holds; or, under `NAME error`, why there are none.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels import xla
from model_server.kernels.pages import LayerPages, allocate
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import layout_of
from tests.model_server.models.family_cases import golden_of, load
from tests.model_server.tiny import PAGE, one_prompt


def mesh_logits(
    model: Any, prompt: np.ndarray, recipe: Recipe, shape: tuple[int, int, int]
) -> np.ndarray:
    """f32[S, V], over pages that lie on the mesh as the server would put them."""
    pages = _pages(recipe, shape, -(-len(prompt) // PAGE))
    tokens, positions = np.pad(prompt, (1, 0)), np.pad(np.arange(len(prompt)), (1, 0))

    def run(model: Any, pages: tuple[LayerPages, ...]) -> jax.Array:
        hidden, _ = model(
            jnp.asarray(tokens, jnp.int32),
            jnp.asarray(positions, jnp.int32),
            pages,
            one_prompt(len(prompt), xla.KERNEL),
        )
        return model.logits(hidden[1:])

    return np.asarray(jax.jit(run)(model, pages))


def _pages(recipe: Recipe, shape: tuple[int, int, int], count: int) -> tuple[LayerPages, ...]:
    layout = layout_of(shape).placed()
    cache = recipe.cache(layout.shards("heads"))
    return allocate(cache, count, PAGE, jnp.dtype("float32"), layout.pages)


def largest_share(model: Any) -> float:
    """Bytes of weights on the fullest device, of the bytes of all weights."""
    held: Counter[Any] = Counter()
    leaves = jax.tree.leaves(model)
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return max(held.values()) / sum(leaf.nbytes for leaf in leaves)


def main() -> None:
    path, *runs = sys.argv[1:]
    results: dict[str, Any] = {}
    for run in runs:
        name, _, sizes = run.partition(":")
        replica, data, inner = map(int, sizes.split("x"))
        shape = (replica, data, inner)
        try:
            model, recipe = load(name, shape)
            results[run] = mesh_logits(model, golden_of(name)["prompt"], recipe, shape)
            results[f"{run} share"] = np.asarray(largest_share(model))
        except Exception:
            results[f"{run} error"] = np.asarray(traceback.format_exc())
    np.savez(path, **results)


if __name__ == "__main__":
    main()
