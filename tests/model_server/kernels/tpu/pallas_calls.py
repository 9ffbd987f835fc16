"""Pallas calls inside a function, and the blocks that their grids bring to the chip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def kernel_call(function: Callable[..., Any], *shapes: Any) -> Any:
    """Return the equation of the only Pallas call that a function makes."""
    (found,) = _calls(jax.make_jaxpr(function)(*shapes).jaxpr)
    return found


def _calls(jaxpr: Any) -> Iterator[Any]:
    for each in jaxpr.eqns:
        if each.primitive.name == "pallas_call":
            yield each
            continue
        for inner in jax.tree.leaves(tuple(each.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                yield from _calls(getattr(inner, "jaxpr", inner))


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def blocks_brought(mapping: Any, grid: tuple[int, int], scalars: Any) -> list[tuple[int, ...]]:
    """Return where each block starts that a grid brings for one input, in order.

    mapping: of the input. scalars: what the call prefetches. The pipeline brings a block again only
    if the step before had another.
    """
    steps = [jnp.asarray(axis.reshape(-1)) for axis in np.indices(grid, np.int32)]

    def starts(*step: jax.Array) -> tuple[jax.Array, ...]:
        return mapping.compute_start_indices_interpret(step, *jax.tree.leaves(scalars))

    at = [tuple(map(int, each)) for each in np.stack(jax.vmap(starts)(*steps), axis=1)]
    return [each for place, each in enumerate(at) if place == 0 or each != at[place - 1]]
