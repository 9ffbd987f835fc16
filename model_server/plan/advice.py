"""Suggest changes for a model that does not fit its slice.

Each change is tried by the arithmetic of a load, without compiling, and comes with its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from model_server.config import ModelServerConfig
from model_server.loading.asked_limits import AskedLimits, asked_context
from model_server.loading.placed_model import PlacedModel, place_model
from model_server.models.recipe import Recipe
from model_server.plan.model import PlannedModel
from model_server.plan.slices import LENT, chips_of
from model_server.plan.topology import Topology, topology_of
from sax.errors import SaxError
from sax.format import human_bytes as human

_SMALLEST_CONTEXT = 256


@dataclass(frozen=True, slots=True)
class Attempt:
    """Bytes that one device must hold at least, and bytes that it may hold."""

    placed: PlacedModel
    least: int  # weights, workspace, and one whole sequence
    limit: int

    @property
    def weights(self) -> int:
        return self.placed.weight_bytes

    @property
    def fits(self) -> bool:
        return self.least <= self.limit


def attempt(
    model: PlannedModel, recipe: Recipe, topology: Topology, config: ModelServerConfig
) -> Attempt:
    """Size a model on a slice. Raises InvalidRequest if its mesh does not fit the slice."""
    placed = place_model(recipe, model.checkpoint, topology.layout(recipe))
    return Attempt(placed, AskedLimits(placed, config).least_bytes, topology.memory(config).limit)


def changes(
    model: PlannedModel,
    overrides: Mapping[str, str],
    topology: Topology,
    config: ModelServerConfig,
) -> list[str]:
    """Return one sentence per change that makes the model fit, the smallest change first."""
    recipe = model.recipe(overrides)
    found = [
        text
        for change in _overrides(recipe, overrides, topology)
        if (text := _tried(model, {**overrides, **change}, change, topology, config))
    ]
    found += _fewer_flags(model, recipe, topology, config)
    if larger := smallest_slice(model, recipe, config, [topology.chip.name], topology.chips + 1):
        found.append(_of_slice(larger))
    elif other := smallest_slice(model, recipe, config, ["v5p", "v7x"]):
        found.append(_of_slice(other))
    return found


def smallest_slice(
    model: PlannedModel,
    recipe: Recipe,
    config: ModelServerConfig,
    chips: list[str],
    least_chips: int = 1,
) -> tuple[Topology, Attempt] | None:
    return next(fitting_slices(model, recipe, config, chips, least_chips), None)


def fitting_slices(
    model: PlannedModel,
    recipe: Recipe,
    config: ModelServerConfig,
    chips: list[str],
    least_chips: int = 1,
) -> Iterator[tuple[Topology, Attempt]]:
    """Yield every slice of these chips that fits by arithmetic, smallest first."""
    for chip in chips:
        for size in LENT[chip]:
            if chips_of(size) < least_chips:
                continue
            topology = topology_of(f"{chip}:{size}")
            try:
                tried = attempt(model, recipe, topology, config)
            except SaxError:  # its mesh is larger than the slice, or no whole number of hosts
                continue
            if tried.fits:
                yield topology, tried


def _overrides(
    recipe: Recipe, given: Mapping[str, str], topology: Topology
) -> Iterator[dict[str, str]]:
    there = len(topology.devices)
    if recipe.mesh_shape and math.prod(recipe.mesh_shape) < there:
        yield {"ICI_MESH_SHAPE": f"[1,1,{there}]"}
    dtypes = [] if recipe.kv_cache_dtype in ("int8", "float8_e4m3fn") else ['"int8"']
    schemes = ['"int8"', '"int4"'] if recipe.quantize is None else ['"int4"']
    for dtype in dtypes:
        yield {"KV_CACHE_DTYPE": dtype}
    for scheme in schemes:
        if given.get("QUANTIZE") != scheme:
            yield {"QUANTIZE": scheme}
    for scheme in schemes:
        for dtype in dtypes:
            yield {"QUANTIZE": scheme, "KV_CACHE_DTYPE": dtype}


def _tried(
    model: PlannedModel,
    overrides: Mapping[str, str],
    change: Mapping[str, str],
    topology: Topology,
    config: ModelServerConfig,
) -> str | None:
    try:
        tried = attempt(model, model.recipe(overrides), topology, config)
    except SaxError:
        return None
    if not tried.fits:
        return None
    words = " ".join(f"{key}={value}" for key, value in change.items())
    return f"--set {words}: {_needs(tried)}"


def _fewer_flags(
    model: PlannedModel, recipe: Recipe, topology: Topology, config: ModelServerConfig
) -> Iterator[str]:
    context = _below(asked_context(recipe, config))
    while context >= _SMALLEST_CONTEXT:
        tried = attempt(model, recipe, topology, replace(config, max_context=context))
        if tried.fits:
            yield f"--max_context {context}: {_needs(tried)}"
            return
        context //= 2


def _below(context: int) -> int:
    """Return the largest power of two below the context."""
    return 1 << max(0, (context - 1).bit_length() - 1)


def _of_slice(found: tuple[Topology, Attempt]) -> str:
    topology, tried = found
    return f"--topology {topology.name}: {_needs(tried)}"


def _needs(tried: Attempt) -> str:
    return (
        f"needs {human(tried.least)} of {human(tried.limit)} per device, "
        f"{human(tried.weights)} of it weights"
    )
