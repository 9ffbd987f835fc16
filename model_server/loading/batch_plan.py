"""The one load of models that answer in batches.

Compiling needs no weights and shows how much memory a batch takes, so a plan has its programs
already, and nothing is placed before it is known to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import jax

from model_server.engine.compiling import compiled_in_turn
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_batches import BatchRunner, LoadedBatches
from model_server.loading.loaded_model import Report
from model_server.models.weights.sharding import Layout
from sax.memory_parts import MemoryParts
from sax.types import ModelSpec, Progress

Key = TypeVar("Key", bound=Hashable)
L = TypeVar("L", bound=LoadedBatches)


class ColdBatches(BatchRunner[Any, Any], Protocol):
    """A runner of which no program has run yet."""

    def warm(self, report: Report, /) -> None:
        """Run every program once, so that no request pays for a first run."""
        ...


def _nothing() -> None:
    """There is no memory to free before there are weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan(Generic[L]):
    """A model that is known to match its checkpoint, compiled, without weights."""

    context: LoadContext
    spec: ModelSpec
    layout: Layout  # over this process's devices
    parts: MemoryParts  # bytes per device
    runner: Callable[[Report], ColdBatches]  # reads the weights
    loaded: Callable[..., L]  # given the fields of LoadedBatches that follow from this plan
    discard: Callable[[], None] = _nothing  # frees what the plan holds, if it does not fit

    def build(self, report: Report) -> L:
        """Raises MemoryPlanError, CheckpointError."""
        parts = self.parts
        try:
            free = self.context.free_on(self.layout)
            memory = free.reserve(weights=parts.weights, workspace=parts.state + parts.workspace)
        except BaseException:
            self.discard()
            raise
        runner = self.runner(report)
        runner.warm(report)
        devices = self.layout.mesh.size
        loaded = self.loaded(runner=runner, memory=memory, parts=parts, devices=devices)
        self.context.keep(self.spec, runner, memory)
        return loaded


def compiled_all(
    keys: Sequence[Key], compile_one: Callable[[Key], Any], report: Report
) -> dict[Key, Any]:
    """Return what `compile_one` makes of each key, and report each."""
    programs: dict[Key, Any] = {}
    report(Progress("compiling bucket", 0, len(keys)))
    with closing(compiled_in_turn(keys, compile_one)) as made:
        for done, (key, program) in enumerate(made, 1):
            programs[key] = program
            report(Progress("compiling bucket", done, len(keys)))
    return programs


def code_and_most(programs: Iterable[jax.stages.Compiled]) -> tuple[int, int]:
    """Return the bytes of all programs' code, and of the largest temporaries and results."""
    stats = [each for one in programs if (each := one.memory_analysis())]
    used = (each.temp_size_in_bytes + each.output_size_in_bytes for each in stats)
    return sum(each.generated_code_size_in_bytes for each in stats), max(used, default=0)
