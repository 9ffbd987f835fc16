"""A deep model judged by two shallow ones: layers of one kind cost the same, one after the other.

A step is an embedding, layers and a head. Compiled with few layers and with a few more, the
difference is what a layer costs, and the rest follows. Compiles nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from flax import nnx

from model_server.engine.step_program import StepProgram
from model_server.kernels.pages import CacheShape
from model_server.lm_shapes import step_program
from model_server.models.decoder import Decoder
from model_server.models.recipe import Recipe
from model_server.models.weight import WeightForm
from model_server.plan.compiled import Measured
from model_server.plan.hlo_traffic import Moved
from model_server.plan.target import Target


@dataclass(frozen=True, slots=True)
class Depths:
    """How many layers are compiled, and how many there are."""

    few: int
    more: int
    all: int

    def __str__(self) -> str:
        return f"{self.few} and {self.more} of {self.all} layers"


def depths_of(kinds: Sequence[Any]) -> Depths | None:
    """Two depths that tell a whole one, of what tells layers apart; None: compile them all.

    Both end where the pattern of layers starts anew, behind layers at the front that have none.
    """
    first, period = _pattern(kinds)
    few, more = first + period, first + 2 * period
    if few == 1:  # a layer alone is fused with the embedding before it and the head behind it
        few, more = 2, 3
    return Depths(few, more, len(kinds)) if more < len(kinds) - 1 else None


def program_with(target: Target, layers: int) -> StepProgram:
    """The target's program with the first so many layers, and the same pages."""
    recipe = _cut(target.recipe, layers)
    blueprint = recipe.blueprint(target.layout, target.checkpoint)
    return step_program(recipe, blueprint, target.limits, target.layout)


def whole(few: Measured, more: Measured, depths: Depths) -> Measured:
    """What a bucket comes to with all layers."""

    def line(low: float, high: float) -> float:
        slope = (high - low) / (depths.more - depths.few)
        return max(0.0, high + slope * (depths.all - depths.more))

    def count(name: str) -> int:
        return round(line(getattr(few, name), getattr(more, name)))

    kinds = {*few.sent, *more.sent}
    moved = {
        field.name: round(line(getattr(few.moved, field.name), getattr(more.moved, field.name)))
        for field in fields(Moved)
    }
    return replace(
        more,
        arguments=count("arguments"),
        temporaries=max(count("temporaries"), more.temporaries),
        outputs=count("outputs"),
        code=count("code"),
        code_least=more.code,
        flops=line(few.flops, more.flops),
        moved=Moved(**moved),
        sent={kind: round(line(few.sent.get(kind, 0), more.sent.get(kind, 0))) for kind in kinds},
        exchanges=count("exchanges"),
        lower_seconds=few.lower_seconds + more.lower_seconds,
        compile_seconds=few.compile_seconds + more.compile_seconds,
        read_seconds=few.read_seconds + more.read_seconds,
    )


def _pattern(kinds: Sequence[Any]) -> tuple[int, int]:
    """How many layers come before the pattern, and after how many it starts anew."""
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
