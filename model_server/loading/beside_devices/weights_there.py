"""Weights that an island's workers read: their bytes do not pass through this process.

The controller reads the header, the configuration and the tokenizer; it asks the workers for
arrays, some at a time, and gets handles of them. Where workers do not offer it, or have not the
same files, the controller reads as it would for its own devices.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.hub.fetching import local_copy
from model_server.islands.custom_call import IslandCall
from model_server.islands.proxy_backend import is_proxied
from model_server.islands.weight_reading import (
    ATTRIBUTE,
    ENCODER,
    READ_WEIGHTS,
    WeightReading,
    size_of,
)
from model_server.loading.placed_model import PlacedModel
from model_server.loading.weights import Report, mismatches
from model_server.models.weights.weight import Declaration, leaf_shapes
from sax.errors import CheckpointError
from sax.format import human_bytes as human
from sax.types import ModelSpec, Progress

logger = logging.getLogger(__name__)

_AT_ONCE = 256 << 20  # bytes that are asked for together, or one weight
# Codes of the protocol: the files are not there, or not to be read; the call is not known.
_NOT_OFFERED = ("NOT_FOUND", "PERMISSION_DENIED", "UNIMPLEMENTED")
_AT_FAULT = "FAILED_PRECONDITION"  # the checkpoint


def read_there(
    spec: ModelSpec, plan: PlacedModel, checkpoint: Checkpoint, report: Report
) -> list[jax.Array] | None:
    """Have a model's weights read by the workers of its island; None: they do not.

    checkpoint: as `read_weights` takes it. Raises CheckpointError if there is something wrong with
    the checkpoint, and jax's errors if the island is lost.
    """
    if not is_proxied():
        return None
    assert isinstance(plan.layout.mesh, Mesh), "an abstract mesh has no devices"
    devices = list(plan.layout.mesh.devices.flat)
    if not getattr(devices[0], ATTRIBUTE, 0):
        _tell(spec, devices, "its workers read no checkpoints (--checkpoint_root)")
        return None
    if found := next(mismatches(plan.blueprint.declarations, checkpoint), None):
        raise CheckpointError(found)
    try:
        return _read(spec, plan, devices, report)
    except jax.errors.JaxRuntimeError as exc:
        code, _, text = str(exc).partition(": ")
        if code == _AT_FAULT:
            raise CheckpointError(text) from exc
        if code not in _NOT_OFFERED:
            raise
        _tell(spec, devices, text)
        return None


def _read(
    spec: ModelSpec, plan: PlacedModel, devices: Sequence[Any], report: Report
) -> list[jax.Array]:
    shapes = iter(leaf_shapes(plan.blueprint, plan.layout))
    total, done = plan.blueprint.bytes, 0
    leaves: list[jax.Array] = []
    for first, weights in _some(plan.blueprint.declarations):
        report(Progress("reading weights", done, total, "bytes"))
        asked = ENCODER.encode(_asked(spec, plan, first, len(weights)))
        results = [next(shapes) for weight in weights for _ in weight.leaves]
        leaves += jax.block_until_ready(IslandCall(READ_WEIGHTS, asked, devices, results).run())
        done += sum(weight.bytes for weight in weights)
    report(Progress("reading weights", total, total, "bytes"))
    logger.info("%s: island %d read %s itself", spec.model_id, _island(devices), human(total))
    return leaves


def _some(declared: Sequence[Declaration]) -> Iterator[tuple[int, Sequence[Declaration]]]:
    """Yield weights to ask for together, with the place of the first."""
    first, size = 0, 0
    for place, weight in enumerate(declared):
        if place > first and size + weight.bytes > _AT_ONCE:
            yield first, declared[first:place]
            first, size = place, 0
        size += weight.bytes
    yield first, declared[first:]


def _asked(spec: ModelSpec, plan: PlacedModel, first: int, count: int) -> WeightReading:
    stage, path = plan.recipe.stage, local_copy(spec.checkpoint)
    return WeightReading(
        checkpoint=path,
        size=size_of(path),
        model_path=spec.model_path,
        overrides=dict(spec.overrides),
        stage=None if stage is None else stage.index,
        mesh=tuple(plan.layout.mesh.shape.values()),
        first=first,
        count=count,
    )


def _tell(spec: ModelSpec, devices: Sequence[Any], why: str) -> None:
    logger.warning(
        "%s: weights pass through this process to island %d: %s",
        spec.model_id,
        _island(devices),
        why,
    )


def _island(devices: Sequence[Any]) -> int:
    return getattr(devices[0], "slice_index", 0)
