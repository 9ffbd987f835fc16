"""Adapters: models that have room for them, who holds their places, and one host's part of them.

An adapter is read first, which takes as long as its files do, in any thread; then the runner writes
it into its place between two steps. A device gets the part of the factors that belongs to its part
of the weights.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import jax
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import with_whole_names, without_prefixes
from model_server.checkpoints.hub.fetching import local_copy
from model_server.checkpoints.huggingface.peft import MERGE, PeftAdapter, open_adapter
from model_server.checkpoints.region import Region
from model_server.checkpoints.roots import CheckpointRoots
from model_server.config import ModelServerConfig
from model_server.engine.running.ops import ForgetAdapter, ReadAdapter, Runner, WriteAdapter
from model_server.loading.checkpoint_opener import CheckpointOpener
from model_server.loading.deployment import Deployment
from model_server.loading.loaded import Loaded, LoadedAdapter
from model_server.loading.weights import place
from model_server.models.weights.low_rank import AdapterRoom, FactorPart, LowRankFactor, LowRankPair
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import Blueprint, Declaration, Leaf
from sax.errors import CheckpointError, LoadFailed
from sax.format import count, listing, quoted
from sax.memory_parts import MemoryParts
from sax.types import ModelSpec, Progress

_NAMED = 5  # modules that one error names
_BAND = 1024  # rows of a base's weight that are measured at once


Opened = AbstractContextManager[Checkpoint | None]


class HostAdapters:
    """The adapters of one model with room for them, on this host."""

    def __init__(
        self, deployment: Deployment, roots: CheckpointRoots, base: Callable[[], Opened]
    ) -> None:
        """base: opens the model's checkpoint; None: it has none."""
        self._deployment = deployment
        self._roots = roots
        self._base = base
        self._read: dict[str, Sequence[jax.Array]] = {}  # and not written, by key
        self._reading: set[str] = set()
        self._guard = threading.Lock()

    def read(self, key: str, path: str, folder: str) -> None:
        """Read an adapter and keep it under the key until it is written or forgotten.

        folder: of its files, below the path. Raises CheckpointError.
        """
        with self._guard:
            self._reading.add(key)
        made = self._factors(path, folder)
        with self._guard:
            if key in self._reading:
                self._read[key] = made

    def forget(self, key: str) -> None:
        with self._guard:
            self._reading.discard(key)
            self._read.pop(key, None)

    def take(self, key: str) -> Sequence[jax.Array]:
        """Return the factors of an adapter that was read, and forget it."""
        with self._guard:
            self._reading.discard(key)
            return self._read.pop(key)

    def _factors(self, path: str, folder: str) -> list[jax.Array]:
        self._roots.check(path)
        with closing(open_adapter(os.path.join(local_copy(path), folder))) as adapter:
            _check_adapter(adapter, self._whole)
            declared = self._deployment.blueprint.declarations
            with self._opened(adapter) as base:
                read = AdapterReader(adapter, base, self._deployment.layout)
                return [read.placed(each) for each in declared if each.low_rank]

    @contextmanager
    def _opened(self, adapter: PeftAdapter) -> Iterator[Checkpoint | None]:
        """Open the base for an adapter with lengths, which are told beside its weights."""
        if not any(module.length for module in adapter.modules.values()):
            yield None
            return
        with self._base() as base:
            if base is None:
                raise CheckpointError(
                    "the adapter has lengths of its base's rows (use_dora), and its base has "
                    "random weights: publish the base with its checkpoint"
                )
            declared = self._whole.declarations
            wanted = {name for each in declared for name in each.source.names}
            own = without_prefixes(base, self._deployment.recipe.unused)
            yield with_whole_names(own, wanted)

    @cached_property
    def _whole(self) -> Blueprint:
        """The model with the layers of all stages."""
        recipe = replace(self._deployment.recipe, stage=None, quantize=None)
        return recipe.blueprint(self._deployment.layout)


def adapters_of(
    deployment: Deployment, config: ModelServerConfig, spec: ModelSpec
) -> HostAdapters | None:
    """Return the adapters of a model; None if it has no room for any."""
    if deployment.recipe.adapters is None:
        return None
    opener = CheckpointOpener(config.checkpoint_roots, config.open_seconds)
    roots = CheckpointRoots(config.checkpoint_roots)
    return HostAdapters(deployment, roots, lambda: opener.opened(spec, lambda _: None))


def _check_adapter(adapter: PeftAdapter, whole: Blueprint) -> None:
    """Raise CheckpointError unless all of the adapter fits the model.

    whole: the model with all its layers, so that every host raises the same.
    """
    pairs, rank = _pairs(whole)
    if unknown := sorted(adapter.modules.keys() - pairs.keys()):
        named = ", ".join(map(quoted, unknown[:_NAMED]))
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        kinds = listing(sorted({module.rpartition(".")[2] for module in pairs}))
        raise CheckpointError(
            f"the adapter changes {named}{more}, which take no adapter in this model; those that "
            f"do are {kinds}. For others, {MERGE}"
        )
    for module, adapted in adapter.modules.items():
        if adapted.rank > rank:
            raise CheckpointError(
                f"the adapter's rank is {adapted.rank} at {quoted(module)}, but its base has room "
                f"for {rank}: publish the base with MAX_ADAPTER_RANK={adapted.rank}"
            )
    for declared in whole.declarations:
        if declared.low_rank:
            _check_shapes(adapter, declared, declared.low_rank)


def _pairs(whole: Blueprint) -> tuple[dict[str, LowRankPair], int]:
    filled = [each.low_rank for each in whole.declarations if each.low_rank]
    pairs = {pair.module: pair for factor in filled for pair in factor.pairs}
    return pairs, min((factor.rank for factor in filled), default=0)


def _check_shapes(adapter: PeftAdapter, declared: Declaration, factor: LowRankFactor) -> None:
    for pair in factor.pairs:
        module, width = adapter.modules.get(pair.module), declared.shape[-1]
        if module is None or (factor.part is FactorPart.GAIN and not module.length):
            continue
        source, wanted = {
            FactorPart.DOWN: (pair.down, (module.rank, width)),
            FactorPart.UP: (pair.up, (width, module.rank)),
            FactorPart.GAIN: (pair.length, (width,)),
        }[factor.part]
        if source.shape(adapter) != wanted:
            name = source.names[0]
            raise CheckpointError(
                f"tensor {quoted(name)} is {list(adapter.shape(name))}, which does not fit the "
                f"base: it was trained for another model"
            )


class AdapterReader:
    """Makes the factors of one adapter, which fits the model: check it with `_check_adapter`."""

    def __init__(self, adapter: PeftAdapter, base: Checkpoint | None, layout: Layout) -> None:
        """base: None if no module of the adapter has lengths."""
        self._adapter = adapter
        self._base = base
        self._layout = layout
        self._gains: dict[tuple[LowRankPair, int, int], np.ndarray] = {}

    def placed(self, declared: Declaration) -> jax.Array:
        """Return one factor without its dimension of places; zeros where the adapter has none.

        Raises CheckpointError for numbers that are not finite: they would spread to the rows of
        other adapters.
        """
        factor = declared.low_rank
        assert factor is not None
        leaf = Leaf("", declared.shape[1:], declared.dtype, declared.axes[1:])
        parts = {FactorPart.DOWN: self._down, FactorPart.UP: self._up, FactorPart.GAIN: self._gain}

        def read(region: Region) -> np.ndarray:
            numbers = parts[factor.part](factor, region).astype(leaf.dtype)
            if not np.isfinite(numbers.astype(np.float32)).all():
                raise CheckpointError(
                    f"the adapter has numbers at {quoted(factor.pairs[0].module)} that are not "
                    f"finite in {np.dtype(leaf.dtype).name}: it is damaged, or its training "
                    "diverged"
                )
            return numbers

        return place(leaf, self._layout, read)

    def _down(self, factor: LowRankFactor, region: Region) -> np.ndarray:
        """f32[k r, in]: A of each module, in r rows each."""
        rows, columns = region
        made = np.zeros((len(factor.pairs) * factor.rank, columns.stop - columns.start), np.float32)
        for index, pair in enumerate(factor.pairs):
            if module := self._adapter.modules.get(pair.module):
                wanted = (slice(0, module.rank), columns)
                first = index * factor.rank
                found = pair.down.read(self._adapter, wanted, np.float32)
                made[first : first + module.rank] = found
        return made[rows]

    def _up(self, factor: LowRankFactor, region: Region) -> np.ndarray:
        """f32[r, out]: gain * scale * B of the module, transposed."""
        rows, columns = region
        made = np.zeros((factor.rank, columns.stop - columns.start), np.float32)
        (pair,) = factor.pairs
        if module := self._adapter.modules.get(pair.module):
            found = pair.up.read(self._adapter, (columns, slice(0, module.rank)), np.float32)
            made[: module.rank] = module.scale * found.T
            if module.length:
                made[: module.rank] *= self._gains_of(pair, columns)
        return made[rows]

    def _gain(self, factor: LowRankFactor, region: Region) -> np.ndarray:
        """f32[out]: gain - 1; where a module has gains its first number is none that says no."""
        (columns,), (pair,) = region, factor.pairs
        module = self._adapter.modules.get(pair.module)
        if module is None or not module.length:
            return np.zeros(columns.stop - columns.start, np.float32)
        made = self._gains_of(pair, columns) - 1
        if columns.start == 0 and not made[0]:
            made[0] = np.finfo(np.float32).tiny
        return made.astype(np.float32)

    def _gains_of(self, pair: LowRankPair, columns: slice) -> np.ndarray:
        """f64[out]: the length that the adapter gives each row of W + scale * B @ A, over that
        which it has."""
        key = pair, columns.start, columns.stop
        if key not in self._gains:
            bands = range(columns.start, columns.stop, _BAND)
            made = [self._gains_in(pair, at, min(at + _BAND, columns.stop)) for at in bands]
            self._gains[key] = np.concatenate(made)
        return self._gains[key]

    def _gains_in(self, pair: LowRankPair, first: int, stop: int) -> np.ndarray:
        assert self._base is not None, "opened for every adapter with lengths"
        adapter, module, rows = (
            self._adapter,
            self._adapter.modules[pair.module],
            slice(first, stop),
        )
        inputs, ranks = slice(0, pair.weight.shape(self._base)[1]), slice(0, module.rank)
        down = pair.down.read(adapter, (ranks, inputs), np.float32)
        up = pair.up.read(adapter, (rows, ranks), np.float32)
        whole = pair.weight.read(self._base, (rows, inputs), np.float32) + module.scale * up @ down
        lengths = pair.length.read(adapter, (rows,), np.float32).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):  # told as not finite
            return lengths / np.sqrt(np.einsum("oi,oi->o", whole, whole, dtype=np.float64))


def load_own(spec: ModelSpec, room: AdapterRoom, runner: Runner) -> None:
    """Read the checkpoint's own adapters on every host and put each into its place.

    A runner that cannot is closed. Raises CheckpointError.
    """
    try:
        for own in room.own:
            key = f"{spec.model_id} {own.kind}"
            runner.do(ReadAdapter(key, spec.checkpoint, own.folder)).result()
            runner.do(WriteAdapter(key, room.place_of(own.kind)))
    except BaseException:
        runner.close()
        raise


@dataclass(slots=True, eq=False)
class Base:
    """A loaded model and the adapters in its places."""

    model_id: str
    room: AdapterRoom
    loaded: Loaded
    runner: Runner  # without wrappers for disaggregation
    holders: dict[int, str] = field(default_factory=dict[int, str])  # place, from 1 on -> model
    guard: threading.Lock = field(default_factory=threading.Lock)

    def take(self, model_id: str) -> int:
        """Return a free place. Raises LoadFailed, naming those that hold them."""
        with self.guard:
            for place in range(1, self.room.free + 1):
                if place not in self.holders:
                    self.holders[place] = model_id
                    return place
            raise LoadFailed(
                f"{self.model_id} has room for {count(self.room.free, 'adapter')} "
                f"(MAX_ADAPTERS) and holds {listing(sorted(self.holders.values()))}: unpublish "
                "one, or publish the base with more room"
            )

    def free(self, place: int) -> None:
        with self.guard:
            self.holders.pop(place, None)


class HeldPlace:
    """A place that an adapter holds until it is closed."""

    def __init__(self, base: Base, place: int) -> None:
        self._base = base
        self.place = place
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._base.free(self.place)


class Bases:
    """Thread-safe."""

    def __init__(self) -> None:
        self._bases: dict[str, Base] = {}
        self._keys = itertools.count(1)

    def keep(self, spec: ModelSpec, room: AdapterRoom, loaded: Loaded, runner: Runner) -> None:
        """Remember a model that was loaded with room for adapters that are published."""
        if room.free:
            self._bases[spec.model_id] = Base(spec.model_id, room, loaded, runner)

    def load(
        self, spec: ModelSpec, base_id: str, report: Callable[[Progress], None]
    ) -> LoadedAdapter:
        """Read an adapter on every host and put it into a free place of its base.

        Raises LoadFailed, CheckpointError.
        """
        base = self._bases.get(base_id)
        if base is None or base.runner.closed:
            raise self._missing(base_id, gone=base is not None)
        held = HeldPlace(base, base.take(spec.model_id))
        key = f"{spec.model_id} {next(self._keys)}"
        try:
            report(Progress("reading the adapter"))
            base.runner.do(ReadAdapter(key, spec.checkpoint)).result()
            report(Progress("writing the adapter"))
            base.runner.do(WriteAdapter(key, held.place))
        except BaseException:
            held.close()
            if not base.runner.closed:
                base.runner.do(ForgetAdapter(key))
            raise
        return LoadedAdapter(
            base=base_id,
            place=held.place,
            runner=held,
            loaded=replace(base.loaded, disaggregation=None, memory=0, parts=MemoryParts()),
        )

    def _missing(self, base_id: str, *, gone: bool) -> LoadFailed:
        bases = [each.model_id for each in self._bases.values() if not each.runner.closed]
        there = f"it has {listing(sorted(bases))}" if bases else "it has none"
        return LoadFailed(
            f"its base {base_id} is not loaded here{' any more' if gone else ''} with room for "
            f"adapters (of such models {there}): publish it with MAX_ADAPTERS=16, say"
        )
