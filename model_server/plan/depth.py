"""Estimate a deep model from a shallow one: layers of one kind cost the same.

A step is an embedding, layers and a head. It is compiled with a few layers; every further layer is
taken to cost as much as the inner ones of these. Compiles nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flax import nnx

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.kernels.pages import CacheShape
from model_server.loading.deployment import Deployment
from model_server.models.layers.decoder import Decoder
from model_server.models.recipe import Recipe
from model_server.models.weights.weight import WeightForm
from model_server.plan.compiled import Measured, Part
from model_server.plan.hlo.module import ELSEWHERE, Computation, HloModule, Instruction
from model_server.plan.hlo.traffic import added
from model_server.plan.work import layer_at

_LEAST = 8  # layers
_BEFORE = -1  # layer of instructions that depend on none
_PARAMETER = re.compile(r"(leaves|pages)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Depths:
    """Number of layers to compile, and in all."""

    few: int  # compiled for one bucket only, to see the memory per layer
    more: int
    all: int
    typical: range  # those of `more` whose cost stands for all further layers

    @property
    def missing(self) -> float:
        """Repeats of the typical layers beyond the compiled ones."""
        return (self.all - self.more) / len(self.typical)

    def __str__(self) -> str:
        return f"{self.more} of {self.all} layers"


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes that one layer adds to every program."""

    arguments: float
    temporaries: float
    outputs: float
    code: float


def depths_of(kinds: Sequence[Any]) -> Depths | None:
    """Choose depths that represent all layers of these kinds; None: compile them all.

    The typical layers are one period of the pattern, after any irregular layers at the front. Two
    layers stand before them and two behind: the first and the last ones share fusions and on-chip
    memory with the embedding and the head. Shallow programs keep more on the chip than deep ones
    do: from 7 layers on, libtpu 0.0.52 compiles a layer as it does among 96.
    """
    first, period = _pattern(kinds)
    start = max(first + 1, 2)
    more = max(start + period + 2, _LEAST)
    if more >= len(kinds) - 1:
        return None
    return Depths(more - period, more, len(kinds), range(start, start + period))


def shallow(deployment: Deployment, checkpoint: Checkpoint | None, layers: int) -> Deployment:
    """Return the deployment of only the first layers, with the same pages."""
    recipe = _cut(deployment.recipe, layers)
    blueprint = recipe.blueprint(deployment.layout, checkpoint)
    return replace(deployment, recipe=recipe, blueprint=blueprint)


def typical_part(deployment: Deployment, depths: Depths) -> Part:
    """Return a mask that leaves in a program only the cost of its typical layers."""
    paths = [each.path for each in deployment.blueprint.declarations for _ in each.leaves]

    def layer_of(parameter: str) -> int | None:
        found = _PARAMETER.match(parameter)
        if found is None:
            return None
        number = int(found[2])
        return number if found[1] == "pages" else layer_at(paths[number])

    def part(program: HloModule) -> HloModule:
        return only_layers(program, depths.typical, layer_of)

    return part


def only_layers(
    program: HloModule, layers: Container[int], layer_of: Callable[[str], int | None]
) -> HloModule:
    """Return the program with the cost of all other layers masked.

    An instruction belongs to the last layer among those whose weights and pages it depends on:
    whatever is computed between two layers belongs to the one before, and so does a head that has
    no weights yet. layer_of: maps the op_name of an entry parameter to its layer, or to None.
    """
    belongs = _layers(program.entry, layer_of)

    def masked(each: Instruction) -> Instruction:
        # Scalars stay: loop bounds are read from them, and they cost nothing.
        if belongs[each.name] in layers or not any(array.dims for array in each.arrays):
            return each
        return replace(each, opcode=ELSEWHERE, rest="")

    entry = Computation(program.entry.name, tuple(map(masked, program.entry.instructions)))
    return replace(program, entry=entry, computations={**program.computations, entry.name: entry})


def growth_of(few: Measured, more: Measured, depths: Depths) -> Growth:
    layers = depths.more - depths.few

    def slope(name: str) -> float:
        return max(0, getattr(more, name) - getattr(few, name)) / layers

    return Growth(slope("arguments"), slope("temporaries"), slope("outputs"), slope("code"))


def uneven_pages(deployment: Deployment, depths: Depths) -> int:
    """Return the bytes of all pages beyond those that `growth_of` counts: layers have unlike ones.

    Negative if it counts too many.
    """

    def pool(layers: int) -> int:
        made = replace(deployment, recipe=_cut(deployment.recipe, layers))
        return made.pages_of(made.limits).pool(made.limits.pages)

    few, more = pool(depths.few), pool(depths.more)
    further = depths.all - depths.more
    return pool(depths.all) - more - round((more - few) / (depths.more - depths.few) * further)


def whole(measured: Measured, growth: Growth, depths: Depths, flops_ratio: float) -> Measured:
    """Extrapolate a bucket to all layers; flops_ratio: FLOPs of all layers to the compiled ones."""
    assert measured.layers is not None, "measured without its typical layers"
    further = depths.all - depths.more

    def grown(name: str) -> int:
        return getattr(measured, name) + round(getattr(growth, name) * further)

    return replace(
        measured,
        arguments=grown("arguments"),
        temporaries=grown("temporaries"),
        outputs=grown("outputs"),
        code=grown("code"),
        flops=measured.flops * flops_ratio,
        traffic=added(measured.traffic, measured.layers, depths.missing),
        layers=None,
    )


def _pattern(kinds: Sequence[Any]) -> tuple[int, int]:
    """Return the number of layers before the pattern, and its period."""
    for first in range(len(kinds) // 2):
        rest = kinds[first:]
        for period in range(1, len(rest) // 2 + 1):
            if all(kind == rest[place % period] for place, kind in enumerate(rest)):
                return first, period
    return 0, len(kinds)


def _cut(recipe: Recipe, layers: int) -> Recipe:
    def build(form: WeightForm) -> nnx.Module:
        module = recipe.build(form)
        assert isinstance(module, Decoder), "every language model is a stack of layers"
        module.layers = nnx.List(module.layers[:layers])
        module.ropes = module.ropes[:layers]
        return module

    def cache(shards: int) -> CacheShape:
        return replace(recipe.cache(shards), layers=layers)

    return replace(recipe, build=build, cache=cache)


def _layers(entry: Computation, layer_of: Callable[[str], int | None]) -> dict[str, int]:
    """Return the layer of each instruction, by name; relies on operands preceding their users."""
    found: dict[str, int] = {}
    for each in entry.instructions:
        if each.opcode == "parameter":
            layer = layer_of(each.source)
            found[each.name] = _BEFORE if layer is None else layer
        else:
            found[each.name] = max(
                (found.get(name, _BEFORE) for name in each.operands), default=_BEFORE
            )
    return found
