"""New weights for a loaded model: one host's part, read while steps go on.

A source is the path of a checkpoint or of one safetensors file, `shm:NAME` for shared memory that
holds such a file, or `memory:NAME` for arrays that this process was given (`GIVEN`).
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import with_whole_names, without_prefixes
from model_server.checkpoints.named_tensors import (
    GivenArrays,
    NamedTensors,
    SingleTensorFile,
    shared_memory,
)
from model_server.checkpoints.packed import FLOAT4
from model_server.checkpoints.roots import local_place
from model_server.engine.worker import Worker
from model_server.kernels.aligned import BLOCK, SpareBlocks, WeightMemory
from model_server.loading.checkpoint_opener import CheckpointOpener, named
from model_server.loading.deployment import Deployment
from model_server.loading.device_memory import room_now
from model_server.loading.weights import read_weights
from model_server.models.weights.quantized import as_bytes
from model_server.models.weights.weight import Declaration
from model_server.sharing.background import give_way
from model_server.sharing.freeing import free, give_back
from sax.errors import CheckpointError, MemoryPlanError
from sax.format import human_bytes as human
from sax.types import Progress

GIVEN: dict[str, Mapping[str, Any]] = {}  # arrays by name, under the NAME of `memory:NAME`
_NAMED = 3  # tensors that one error names


class _ReplacedWeight(NamedTuple):
    """A declared weight, and the place of its first leaf among the runner's."""

    declared: Declaration
    first: int


class HostWeights:
    """Weights that were read for one model on this host, and not put in place yet."""

    def __init__(self, deployment: Deployment, opener: CheckpointOpener) -> None:
        self._deployment = deployment
        self._opener = opener
        self._read: dict[str, dict[int, jax.Array]] = {}
        self._wanted: set[str] = set()  # keys of what is being read
        self._guard = threading.Lock()
        self._blocks = SpareBlocks()

    def read(self, key: str, source: str, partial: bool) -> None:
        """Read all weights of a source, or those that it has, and keep them under the key.

        The work gives way to steps: it is done on a thread of low priority. Nothing is kept of a
        key that was forgotten meanwhile, as another host's refusal has all others do. Raises
        CheckpointError, MemoryPlanError.
        """
        with self._guard:
            self._wanted.add(key)

        def work() -> dict[int, jax.Array]:
            give_way()
            with named(source), self._opened(source) as checkpoint:
                return self._arrays(checkpoint, partial=partial)

        context = contextvars.copy_context()  # marks compiles as expected
        try:
            made = Worker.once("new weights", lambda: context.run(work)).result()
            with self._guard:
                if key in self._wanted:
                    self._read[key] = made
        finally:
            with self._guard:
                self._wanted.discard(key)

    def forget(self, key: str) -> None:
        with self._guard:
            self._wanted.discard(key)
            self._read.pop(key, None)

    def take(self, key: str) -> Mapping[int, jax.Array]:
        """Return what was read, by the places of leaves, and forget it."""
        with self._guard:
            return self._read.pop(key)

    def free(self, replaced: list[jax.Array]) -> None:
        """Free weights; the memory of those that were read here stays for the next ones, until the
        system needs it."""
        free(replaced, self._blocks.holds)
        give_back(self._blocks.drop(_most_spare(self._deployment.weight_bytes)))

    def close(self) -> None:
        """Give back what is kept for the next ones."""
        give_back(self._blocks.drop())

    @contextmanager
    def _opened(self, source: str) -> Iterator[Checkpoint]:
        scheme, _, name = source.partition(":")
        if scheme == "memory":
            if name not in GIVEN:
                raise CheckpointError("this process was given no such arrays")
            yield NamedTensors(GivenArrays(GIVEN[name]))
        elif scheme == "shm":
            file = shared_memory(name)
            self._opener.place(str(file), _quiet)
            with closing(NamedTensors(SingleTensorFile(file))) as shared:
                yield shared
        elif (file := _single_file(source)) is not None:
            self._opener.place(source, _quiet)
            with closing(NamedTensors(SingleTensorFile(file))) as stored:
                yield stored
        else:
            with self._opener.opener(_quiet)(source) as checkpoint:
                yield checkpoint

    def _arrays(self, checkpoint: Checkpoint, *, partial: bool) -> dict[int, jax.Array]:
        plan = self._deployment
        own = without_prefixes(checkpoint, plan.recipe.unused)
        wanted = _weights(plan.blueprint.declarations)
        own = with_whole_names(own, {n for each in wanted for n in each.declared.source.names})
        self._check_form(own, wanted)
        if partial:
            wanted = _given(wanted, set(own.names()))
        declared = [each.declared for each in wanted]
        memory = WeightMemory(self._blocks.block, self._check_room(declared))
        made = read_weights(declared, own, _quiet, plan.layout, in_turn=True, memory=memory)
        places = [each.first + at for each in wanted for at in range(len(each.declared.leaves))]
        return {place: as_bytes(array) for place, array in zip(places, made, strict=True)}

    def _check_form(self, checkpoint: Checkpoint, wanted: Sequence[_ReplacedWeight]) -> None:
        """Raise CheckpointError for a weight kept in a form in which nothing is quantised here."""
        there = set(checkpoint.names())
        for each in wanted:
            declared = each.declared
            names = declared.source.names
            if not declared.kept or not there.issuperset(names):
                continue
            if declared.packing is None or declared.packing.kind != FLOAT4:
                continue  # what is stored otherwise is quantised in the model's form
            if any(checkpoint.packing(name) != declared.packing for name in names):
                raise CheckpointError(
                    f"{names[0]} is not stored in MXFP4 or NVFP4, in which the model was published "
                    "to keep its weights: publish it with QUANTIZE=int8 or int4, which quantises "
                    "new weights as well"
                )

    def _check_room(self, declared: Sequence[Declaration]) -> int:
        """Return the bytes of new weights on a device. Raises MemoryPlanError."""
        plan = self._deployment
        wanted = sum(weight.bytes_on(plan.layout) for weight in declared)
        room = room_now(plan.layout)
        if room is not None and wanted > room:
            raise MemoryPlanError(
                f"the new weights need {human(wanted)} beside the old ones on a device and "
                f"{human(room)} are free: put the model to sleep and wake it from the new "
                "checkpoint, update fewer tensors at once, or lower --kv_cache_bytes"
            )
        return wanted


def _most_spare(weight_bytes: int) -> int:
    """Bytes of blocks for a whole set, whose last arrays may not have fitted any more."""
    return weight_bytes * 3 // 2 + BLOCK


def _weights(declarations: Sequence[Declaration]) -> list[_ReplacedWeight]:
    """Return all weights but the places of adapters."""
    placed: list[_ReplacedWeight] = []
    first = 0
    for declared in declarations:
        if declared.low_rank is None:
            placed.append(_ReplacedWeight(declared, first))
        first += len(declared.leaves)
    return placed


def _given(wanted: Sequence[_ReplacedWeight], there: set[str]) -> list[_ReplacedWeight]:
    """Return the weights that are there. Raises CheckpointError if one is there in part, or none
    uses a tensor."""
    chosen: list[_ReplacedWeight] = []
    for each in wanted:
        names = set(each.declared.source.names)
        if names <= there:
            chosen.append(each)
        elif some := sorted(names & there):
            lacking = ", ".join(sorted(names - there)[:_NAMED])
            raise CheckpointError(
                f"{some[0]} is a part of {each.declared.path}: give {lacking} with it"
            )
    known = {name for each in wanted for name in each.declared.source.names}
    if unknown := sorted(there - known):
        raise CheckpointError(f"the model has no weights {', '.join(unknown[:_NAMED])}")
    if not chosen:
        raise CheckpointError("it has no tensors: name at least one")
    return chosen


def _single_file(source: str) -> Path | None:
    """Return the safetensors file that a path names, or that is all that its folder has."""
    place = local_place(source)
    if place is None:
        return None
    if place.suffix == ".safetensors":
        return place
    alone = place / "model.safetensors"
    return alone if alone.exists() and not (place / "config.json").exists() else None


def _quiet(_: Progress) -> None:
    """Nobody follows an update's progress."""
