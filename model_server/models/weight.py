"""One declaration per weight: shape, logical axes, checkpoint names, initialiser.

A module built under `nnx.eval_shape` takes no memory; everything that needs to know about a
weight (loading, sharding, the memory plan) reads its declaration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


def weight(
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    names: tuple[str, ...] = (),
    *,
    dtype: Any,
    spread: float | None = None,
) -> nnx.Param:
    """Declare one weight.

    axes: a logical axis (embed, heads, ffw, vocab, ...) or None per dimension.
    names: tensors of a Hugging Face checkpoint, joined along the first dimension.
    spread: standard deviation of random weights; None: ones.
    """
    if len(shape) != len(axes):
        raise ValueError(f"{len(shape)} dimensions but {len(axes)} logical axes")
    return nnx.Param(jnp.zeros(shape, dtype), axes=axes, names=names, spread=spread)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What `weight` declared, with the path that the module tree gave it."""

    path: str  # layers.3.attention.qkv.kernel
    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[str | None, ...]
    names: tuple[str, ...]
    spread: float | None

    @property
    def bytes(self) -> int:
        return int(jnp.dtype(self.dtype).itemsize) * math.prod(self.shape)


@dataclass(frozen=True)
class Blueprint:
    """A module without its weights: what to load, and how to put it together."""

    declarations: tuple[Declaration, ...]  # in the order of the leaves
    _graph: Any
    _structure: Any

    def assemble(self, leaves: Sequence[jax.Array]) -> Any:
        """The module over these weights."""
        return nnx.merge(self._graph, jax.tree.unflatten(self._structure, leaves))

    @property
    def bytes(self) -> int:
        return sum(declaration.bytes for declaration in self.declarations)


def blueprint(build: Callable[[], nnx.Module]) -> Blueprint:
    """Read the declarations of the module that `build` makes; no memory is taken."""
    module = nnx.eval_shape(build)
    declared = tuple(_declarations(nnx.state(module)))
    for _, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Param):
            # Layers that differ in nothing but their tensors' names are traced once.
            node.set_metadata(names=())
    graph, state = nnx.split(module)
    return Blueprint(declared, graph, jax.tree.structure(state))


def _declarations(state: nnx.State) -> Iterator[Declaration]:
    for path, leaf in nnx.to_flat_state(state):
        meta = leaf.get_metadata()
        yield Declaration(
            ".".join(map(str, path)),
            tuple(leaf.get_value().shape),
            leaf.get_value().dtype,
            meta["axes"],
            meta["names"],
            meta["spread"],
        )
