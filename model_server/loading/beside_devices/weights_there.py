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
from jax._src.interpreters import pxla
from jax.core import ShapedArray
from jax.sharding import Mesh

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.hub.fetching import local_copy
from model_server.islands import is_proxied
from model_server.loading.beside_devices.weight_reading import (
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


class IslandCall:
    """A call to an island's workers, which have checked it, through jaxlib's unmodified client.

    Of what the protocol of IFRT proxy carries, three things could ask workers to make arrays: a
    StableHLO program with a custom call, which every compiler on the way would have to leave alone;
    a plugin program, which is bytes only, so that a proxy server cannot tell where it goes; and a
    custom call program, which names its devices and the shapes, types and shardings of arguments
    and results. jaxlib makes the last for `jax.experimental.colocated_python` and interprets
    neither the name nor the text: both are plain data here.
    """

    def __init__(
        self,
        name: str,
        text: bytes,
        devices: Sequence[Any],
        results: Sequence[jax.ShapeDtypeStruct],
    ) -> None:
        """Raises JaxRuntimeError if the workers do not take it."""
        from jax.extend.ifrt_programs import ifrt_programs  # with Pallas

        program = ifrt_programs.make_colocated_python_program(
            name, text, list(devices), [], list(results)
        )
        options = ifrt_programs.make_colocated_python_compile_options()
        self._program = devices[0].client.compile_ifrt_program(program, options)
        avals = [ShapedArray(each.shape, each.dtype) for each in results]
        shardings = [each.sharding for each in results]
        made = pxla.global_avals_to_results_handler(avals, shardings, committed=True)
        self._handlers = made.handlers

    def run(self) -> list[jax.Array]:
        """Return the results, which are not there yet: an error of theirs is found by waiting."""
        made = self._program.execute_sharded([], with_tokens=False)
        return made.consume_with_handlers(self._handlers)
