"""Layers that cache another shape than the rest, or nothing because they borrow."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from model_server.kernels.pages import CacheShape, HeadShape, allocate

UNLIKE = CacheShape(
    layers=4,
    kv_heads=2,
    key_dim=8,
    value_dim=8,
    lenders=(None, None, 0, 1),
    others=(None, HeadShape(1, 16, 16), None, None),
)


def shapes_of(cache: CacheShape) -> list[list[tuple[int, ...]]]:
    pages = allocate(cache, 3, 4, jnp.dtype("float32"))
    return [[leaf.shape for leaf in jax.tree.leaves(layer)] for layer in pages]


def test_each_layer_has_pages_of_its_own_shape() -> None:
    first, second, *borrowing = shapes_of(UNLIKE)
    assert first == [(4, 2, 8, 4), (4, 2, 4, 8)]
    assert second == [(4, 1, 16, 4), (4, 1, 4, 16)]
    assert borrowing == [[], []]


def test_a_part_of_the_layers_has_the_shapes_of_these() -> None:
    assert shapes_of(UNLIKE.part(1, 3)) == shapes_of(UNLIKE)[1:3]


def test_bytes_of_a_page_are_those_of_layers_that_keep_something() -> None:
    assert sum(UNLIKE.bytes_by_layer(4, jnp.dtype("float32"))) == 4 * 4 * (2 * 2 * 8 + 2 * 16)
