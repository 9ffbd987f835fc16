"""Layers whose pages have the same numbers and move together, in blocks of 1, 2, 4, ... pages.

In a block the pages of all layers of equal shapes lie in one array, so any number of pages is a few
arrays, without padding and with few programs. Only shapes are here; `movable_pages` copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from model_server.disaggregation.handed_pages import PageCount
from model_server.kernels.pages import Pages

Block = tuple[Pages, ...]  # of each kind of layer, with a leading axis of layers: [L, n, ...]


@dataclass(frozen=True, slots=True)
class LayerSet:
    """Either the window layers of a pool or all others; those that keep nothing are left out."""

    windowed: bool
    layers: tuple[Pages, ...]  # shapes and shardings
    places: tuple[int, ...]  # of these layers in the pool
    kinds: tuple[tuple[int, ...], ...]  # indices into `layers`, those of equal shapes together

    def block(self, size: int) -> Block:
        """Return the shapes of a block of so many pages."""
        return tuple(_stacked(self.layers[kind[0]], len(kind), size) for kind in self.kinds)

    def blocks(self, count: PageCount) -> list[Block]:
        """Return the shapes of the blocks that so many pages take, in their order."""
        return [
            self.block(size)
            for size in block_sizes(count.window_pages if self.windowed else count.pages)
        ]


def layer_sets(pool: Sequence[Pages], windowed: Sequence[bool] = ()) -> tuple[LayerSet, ...]:
    """Return the layers of a pool, arrays or shapes: first those without a window."""
    flags = tuple(windowed) or (False,) * len(pool)
    made = (_layer_set(pool, flags, apart) for apart in (False, True))
    return tuple(each for each in made if each.layers)


def block_sizes(count: int) -> list[int]:
    """Return the pages of each block, largest first: 13 is 8, 4 and 1."""
    return [1 << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1]


def _layer_set(pool: Sequence[Pages], flags: Sequence[bool], windowed: bool) -> LayerSet:
    places = tuple(
        place
        for place, layer in enumerate(pool)
        if flags[place] == windowed and jax.tree.leaves(layer)
    )
    layers = tuple(jax.tree.map(_shape, pool[place]) for place in places)
    kinds: dict[Any, list[int]] = {}
    for index, layer in enumerate(layers):
        kinds.setdefault(_kind(layer), []).append(index)
    return LayerSet(windowed, layers, places, tuple(map(tuple, kinds.values())))


def _kind(layer: Pages) -> Any:
    leaves, structure = jax.tree.flatten(layer)
    return structure, tuple((leaf.shape[1:], leaf.dtype, leaf.sharding) for leaf in leaves)


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def _stacked(layer: Pages, layers: int, size: int) -> Pages:
    def stacked(leaf: Any) -> jax.ShapeDtypeStruct:
        shape = (layers, size, *leaf.shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=_below(leaf.sharding))

    return jax.tree.map(stacked, layer)


def _below(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
    """Return the sharding of an array with an axis before all others."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return sharding
