"""Weights of the dense modules over an embedder's vectors, which lie in files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax

from model_server.checkpoints.huggingface.dense_modules import DenseModule, DenseTensors, open_dense
from model_server.loading.weights import place
from model_server.models.layers.embedder import DENSE
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import Declaration, Leaf
from sax.errors import CheckpointError


def is_dense(weight: Declaration) -> bool:
    return weight.path.startswith(f"{DENSE}.")


def check_dense(
    folder: Path | None, modules: Sequence[DenseModule], declared: Sequence[Declaration], embed: int
) -> None:
    """Raise CheckpointError if the modules do not fit each other, their files or the encoder.

    embed: size of the encoder's hidden states.
    """
    size = embed
    for module in modules:
        if module.inputs != size:
            raise CheckpointError(
                f"{module.folder} takes vectors of {module.inputs} numbers, but what comes before "
                f"it gives {size}"
            )
        size = module.outputs
    if folder is None or not modules:
        return
    with open_dense(folder, modules) as tensors:
        for weight in filter(is_dense, declared):
            if (shape := weight.source.shape(tensors)) != weight.shape:
                raise CheckpointError(
                    f"{', '.join(weight.source.names)} is {list(shape)}; its config.json says "
                    f"{list(weight.shape)}"
                )


def read_dense(
    folder: Path | None,
    modules: Sequence[DenseModule],
    declared: Sequence[Declaration],
    layout: Layout,
) -> dict[str, list[jax.Array]]:
    """Return the leaves of the modules' weights, by path. Raises CheckpointError."""
    wanted = [weight for weight in declared if is_dense(weight)]
    if folder is None or not wanted:
        return {}
    with open_dense(folder, modules) as tensors:
        return {weight.path: _placed(weight, tensors, layout) for weight in wanted}


def _placed(weight: Declaration, tensors: DenseTensors, layout: Layout) -> list[jax.Array]:
    def placed(leaf: Leaf) -> jax.Array:
        return place(leaf, layout, lambda region: weight.source.read(tensors, region, leaf.dtype))

    return [placed(leaf) for leaf in weight.leaves]
