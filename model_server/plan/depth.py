"""Estimate a deep model from a shallow one: layers of one kind cost the same.

A step is an embedding, layers and a head. It is compiled with a few layers; every further layer is
taken to cost as much as the inner one of these that is of its kind. Compiles nothing itself.
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
from model_server.plan.hlo.traffic import COLLECTIVES, NOTHING, StepTraffic, added, traffic_of
from model_server.plan.work import layer_at

_LEAST = 8  # layers
_BEFORE = -1  # layer of instructions that depend on none
# Instructions that do the same with each of several operands.
_SIDE_BY_SIDE = {"tuple", "opt-barrier", *COLLECTIVES, *(f"{each}-start" for each in COLLECTIVES)}
_PARAMETER = re.compile(r"(leaves|pages)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Depths:
    """Number of layers to compile, and in all."""

    few: int  # compiled for one bucket only, to see the memory per layer
    more: int
    all: int
    typical: range  # those of `more` whose cost stands for all further layers

    @property
    def missing(self) -> list[tuple[Container[int], int]]:
        """Typical layers that stand for those beyond the compiled ones, and how often."""
        start, period = self.typical.start, len(self.typical)
        periods, left = divmod(self.all - self.more, period)
        # The layers behind the compiled ones that make up no whole period.
        rest = {start + (layer - start) % period for layer in range(self.more, self.more + left)}
        return [(layers, times) for layers, times in ((self.typical, periods), (rest, 1)) if layers]

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


def further_layers(deployment: Deployment, depths: Depths) -> Part:
    """Return what tells, of a compiled program, the traffic of the layers that it lacks."""
    paths = [each.path for each in deployment.blueprint.declarations for _ in each.leaves]

    def layer_of(parameter: str) -> int | None:
        found = _PARAMETER.match(parameter)
        if found is None:
            return None
        number = int(found[2])
        return number if found[1] == "pages" else layer_at(paths[number])

    def part(program: HloModule) -> StepTraffic:
        found = NOTHING
        for layers, times in depths.missing:
            found = added(found, traffic_of(only_layers(program, layers, layer_of)), times)
        return found

    return part


def only_layers(
    program: HloModule, layers: Container[int], layer_of: Callable[[str], int | None]
) -> HloModule:
    """Return the program with the cost of all other layers masked.

    An instruction belongs to the last layer among those whose weights and pages it depends on:
    whatever is computed between two layers belongs to the one before, and so does a head that has
    no weights yet. layer_of: maps the op_name of an entry parameter to its layer, or to None.
    """
    belongs = _layers(program, layer_of)

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


def uneven_bytes(deployment: Deployment, depths: Depths) -> int:
    """Return the bytes of weights, pages and states beyond those that `growth_of` counts.

    They are those of layers that are unlike the ones between both depths. Negative if it counts too
    many.
    """

    def held(layers: int) -> int:
        made = replace(deployment, recipe=_cut(deployment.recipe, layers))
        pool = made.pages_of(made.limits).pool(made.limits.pages)
        return pool + _weight_bytes(deployment, layers)

    few, more = held(depths.few), held(depths.more)
    further = depths.all - depths.more
    return held(depths.all) - more - round((more - few) / (depths.more - depths.few) * further)


def whole(measured: Measured, growth: Growth, depths: Depths, flops_ratio: float) -> Measured:
    """Extrapolate a bucket to all layers; flops_ratio: FLOPs of all layers to the compiled ones."""
    assert measured.further is not None, "measured without the layers that it lacks"
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
        traffic=added(measured.traffic, measured.further),
        further=None,
    )


def _weight_bytes(deployment: Deployment, layers: int) -> int:
    """Return the bytes of the weights of the first layers, and of those that are in none."""
    return sum(
        declared.bytes_on(deployment.layout)
        for declared in deployment.blueprint.declarations
        if (layer_at(declared.path) or 0) < layers
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
        return recipe.cache(shards).part(0, layers)

    # A step of fewer layers shows a draft head as many numbers.
    shows = recipe.shows and tuple(min(layer, layers - 1) for layer in recipe.shows)
    return replace(recipe, build=build, cache=cache, shows=shows)


def _layers(program: HloModule, layer_of: Callable[[str], int | None]) -> dict[str, int]:
    """Return the layer of each instruction, by name; relies on operands preceding their users.

    XLA joins small computations of many layers into one fusion or exchange: so each of several
    results has a layer of its own.
    """
    found: dict[str, int] = {}
    several: dict[str, list[int]] = {}  # of each result
    for each in program.entry.instructions:
        of = [found.get(name, _BEFORE) for name in each.operands]
        if each.opcode == "parameter":
            layer = layer_of(each.source)
            found[each.name] = _BEFORE if layer is None else layer
        elif each.opcode == "get-tuple-element" and (results := several.get(each.operands[0])):
            found[each.name] = results[int(each.attribute("index") or 0)]
        else:
            found[each.name] = max(of, default=_BEFORE)
            if each.opcode.endswith("-done"):
                results = several.get(each.operands[0])
            else:
                results = _of_results(program, each, of)
            if results:
                several[each.name] = results
    return found


def _of_results(program: HloModule, each: Instruction, of: Sequence[int]) -> list[int] | None:
    """Return the layer of each result, of operands of these layers; None: they have one."""
    fused = program.called(each, "calls") if each.opcode == "fusion" else None
    if fused is not None and fused.root.opcode == "tuple":
        taken = _taken(fused)
        return [max((of[n] for n in taken[name]), default=_BEFORE) for name in fused.root.operands]
    if each.opcode in _SIDE_BY_SIDE and len(of) == len(each.results) > 1:
        return list(of)
    return None


def _taken(fused: Computation) -> dict[str, set[int]]:
    """Return the numbers of the parameters on which each instruction depends."""
    taken: dict[str, set[int]] = {each.name: {n} for n, each in fused.parameters.items()}
    for each in fused.instructions:
        if each.opcode != "parameter":
            taken[each.name] = set().union(*(taken.get(name, set()) for name in each.operands))
    return taken
