"""The models of this server that have room for adapters, and who holds their places."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from model_server.engine.running.ops import ForgetAdapter, ReadAdapter, Runner, WriteAdapter
from model_server.loading.loaded import Loaded, LoadedAdapter
from model_server.models.weights.low_rank import AdapterRoom
from sax.errors import LoadFailed
from sax.format import count, listing
from sax.memory_parts import MemoryParts
from sax.types import ModelSpec, Progress


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
            for place in range(1, self.room.places + 1):
                if place not in self.holders:
                    self.holders[place] = model_id
                    return place
            raise LoadFailed(
                f"{self.model_id} has room for {count(self.room.places, 'adapter')} "
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
        """Remember a model that was loaded with room for adapters."""
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
