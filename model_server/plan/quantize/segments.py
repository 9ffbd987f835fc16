"""A language model that is held a few layers at a time, and read over whole inputs.

The embedding, the last norm and the head stay; layers are read when their turn comes. A segment is
one layer, or as many as share keys, values or a choice of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of, with_whole_names
from model_server.kernels.whole import no_pages, whole_batch
from model_server.loading.weights import read_weights
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.whole_decoder import embedded, rotated_positions
from model_server.models.recipe import Recipe
from model_server.models.weights.stage import Stage
from model_server.models.weights.weight import Blueprint, Declaration
from sax.errors import InvalidRequest

_LAYER = re.compile(r"layers\.(\d+)\.")
Values = Sequence[Any]  # of the leaves of one weight
# Turns the values of a weight, by its number among the declarations, into what the module holds.
Change = Callable[[int, Values], Values]


def layer_of(path: str) -> int | None:
    """Return the layer whose weight this is; None: it is of none."""
    match = _LAYER.match(path)
    return None if match is None else int(match[1])


class SegmentedModel:
    """A model of a checkpoint, a segment in memory at a time."""

    def __init__(self, recipe: Recipe, checkpoint: Checkpoint) -> None:
        """Raises InvalidRequest if the model is not a stack of layers."""
        self.recipe = recipe
        self.blueprint: Blueprint = recipe.blueprint(checkpoint=checkpoint)
        wanted = {n for each in self.blueprint.declarations for n in each.source.names}
        self.checkpoint = with_whole_names(checkpoint, wanted)
        self._outer: dict[int, Values] = {}  # the embedding, the last norm, the head
        self._outer = self._read(lambda layer: layer is None)
        module = self._module({})
        if not isinstance(module, Decoder):
            raise InvalidRequest(
                f"this model ({type(module).__name__}) is not a stack of layers that can be read "
                "one at a time: it cannot be calibrated; serve it with QUANTIZE instead"
            )
        self.layers = len(module.layers)
        self.stages = _stages(recipe, self.layers)

    def embedded(self, tokens: np.ndarray) -> jax.Array:
        """f32[B * T, row]: the input of the first layer, of tokens i32[B, T]."""
        module: Decoder = self._module({})
        return embedded(module, jnp.asarray(tokens)).reshape(tokens.size, -1)

    def logits(self, x: jax.Array) -> jax.Array:
        """f32[R, V]: what follows rows f32[R, row] of the last layer."""
        module: Decoder = self._module({})
        return module.logits(module.final_norm(x))

    def segment(self, stage: Stage, change: Change | None = None) -> Decoder:
        """Read the layers of a stage."""
        held = self._read(lambda layer: layer is not None and stage.first <= layer < stage.end)
        if change is not None:
            held = {index: change(index, values) for index, values in held.items()}
        module: Decoder = self._module(held)
        module.keep(stage)
        return module

    def declared(self, stage: Stage) -> Iterator[tuple[int, Declaration]]:
        """Yield the weights of a stage's layers, with their numbers."""
        for index, each in enumerate(self.blueprint.declarations):
            layer = layer_of(each.path)
            if layer is not None and stage.first <= layer < stage.end:
                yield index, each

    def read(self, index: int) -> np.ndarray:
        """Return one plain weight by its number, f32[..., out, in]."""
        each = self.blueprint.declarations[index]
        names = {name: name for name in each.source.names}
        (found,) = read_weights([each], view_of(self.checkpoint, names), lambda _: None)
        return np.asarray(found, np.float32)

    def _read(self, mine: Callable[[int | None], bool]) -> dict[int, Values]:
        chosen = [
            (index, each)
            for index, each in enumerate(self.blueprint.declarations)
            if mine(layer_of(each.path))
        ]
        declared = [each for _, each in chosen]
        names = {n: n for each in declared for n in each.source.names}
        leaves = iter(read_weights(declared, view_of(self.checkpoint, names), lambda _: None))
        return {index: [next(leaves) for _ in each.leaves] for index, each in chosen}

    def _module(self, held: dict[int, Values]) -> Any:
        """Assemble the module; weights that are not there are shapes."""
        leaves: list[Any] = []
        for index, each in enumerate(self.blueprint.declarations):
            absent = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in each.leaves]
            leaves += held.get(index, self._outer.get(index, absent))
        return self.blueprint.assemble(leaves)


def run(segment: Decoder, x: jax.Array, inputs: int) -> jax.Array:
    """Run rows f32[B * T, row] of B inputs through the layers of a segment."""
    length = x.shape[0] // inputs
    lengths = jnp.full((inputs,), length, jnp.int32)
    at = rotated_positions(segment, lengths, length).reshape(-1)
    pages = [no_pages()] * len(segment.layers)
    made, _ = segment.run(x, at, pages, whole_batch(lengths, length))
    return made


def _stages(recipe: Recipe, layers: int) -> tuple[Stage, ...]:
    """Cut before each layer that needs nothing of those before it, nor do those behind it."""
    lenders, choosers = recipe.cache(1).lenders, recipe.choosers
    needed = [
        min((each for each in (_at(lenders, i), _at(choosers, i)) if each is not None), default=i)
        for i in range(layers)
    ]
    firsts = [i for i in range(layers) if min(needed[i:]) >= i]
    ends = [*firsts[1:], layers]
    return tuple(
        Stage(index, len(firsts), first, end)
        for index, (first, end) in enumerate(zip(firsts, ends, strict=True))
    )


def _at(given: Sequence[int | None], index: int) -> int | None:
    return given[index] if index < len(given) else None
