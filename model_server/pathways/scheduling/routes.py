"""Routes: which islands a request goes to.

Pure. A program runs on one island; arrays are on one island; only copies go from one to another.
Arrays of an island's earlier incarnation are lost, which the client learns as DATA_LOSS.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from model_server.pathways.scheduling.handles import (
    ALWAYS,
    DATA_LOSS,
    INVALID,
    UNAVAILABLE,
    UNIMPLEMENTED,
    Fault,
    HandleTable,
    Home,
    IslandIncarnation,
    Parts,
)
from model_server.pathways.scheduling.summary import How, Summary

NO_ISLANDS = Fault(UNAVAILABLE, "no island is up: start its workers, or wait until they are back")


class IslandTopology(NamedTuple):
    """The islands' devices, and which islands are up."""

    islands: Mapping[int, int]  # device id -> island
    epochs: Mapping[int, int]  # of the islands that are up


class Whole(NamedTuple):
    """The request goes to one island as it is."""

    target: IslandIncarnation


class Fallback(NamedTuple):
    """The request goes to a live island, about one of its devices, as its own island is down."""

    target: IslandIncarnation
    device: int


class Split(NamedTuple):
    """Parts of the request go to islands: handles by island; without any, nothing is to be done."""

    parts: Mapping[int, tuple[int, ...]]
    fault: Fault | None = None  # of the handles that are on no island


class Across(NamedTuple):
    """Arrays are copied to an island, each from where it is."""

    to: IslandIncarnation
    sources: tuple[IslandIncarnation, ...]  # one per array


Route = Whole | Fallback | Split | Across | Fault


def route(summary: Summary, table: HandleTable, topology: IslandTopology) -> Route:
    """Decide where a request goes. A Fault is its answer, and that of all that it would make."""
    if summary.row.how is How.SPLIT:
        return _split(summary, table, topology)
    if summary.row.how is How.ANY:
        return _any(topology)
    target = _target(summary.devices, topology)
    if isinstance(target, Fault):
        return _like(topology) or target if summary.row.how is How.LIKE else target
    if summary.row.how is How.COPY:
        return _copy(summary, table, topology, target)
    return _one(summary, table, topology, target)


def _holder(home: Home, handle: int, topology: IslandTopology) -> IslandIncarnation | Fault:
    """Return the island that holds the value of a handle, or why none does."""
    if isinstance(home, Fault):
        return home
    if isinstance(home, Parts):
        return Fault(INVALID, f"{handle} is a future: only check_future takes it")
    epoch = topology.epochs.get(home.island)
    if epoch is None:
        return lost(home.island)
    return home if home.epoch in (epoch, ALWAYS) else lost(home.island, back=True)


def lost(island: int, back: bool = False) -> Fault:
    """Return the fault of arrays on an island that is lost, or back after a loss."""
    remedy = (
        "it is back: make the array again"
        if back
        else "go on with the devices of other islands until it is back"
    )
    return Fault(DATA_LOSS, f"island {island} was lost with all arrays on it; {remedy}")


def _any(topology: IslandTopology) -> Route:
    if not topology.epochs:
        return NO_ISLANDS
    island = min(topology.epochs)
    return Whole(IslandIncarnation(island, topology.epochs[island]))


def _like(topology: IslandTopology) -> Fallback | None:
    """Return a device of an island that is up: islands are alike."""
    for device, island in topology.islands.items():
        if island in topology.epochs:
            return Fallback(IslandIncarnation(island, topology.epochs[island]), device)
    return None


def _target(devices: Iterable[int], topology: IslandTopology) -> IslandIncarnation | None | Fault:
    """Return the island of a request's devices; None: it names none."""
    found = dict.fromkeys(map(topology.islands.get, devices))
    if None in found:
        strange = next(each for each in devices if each not in topology.islands)
        return Fault(INVALID, f"no island has a device {strange}: ask jax.devices() again")
    if not found:
        return None
    if len(found) > 1:
        return _over(found)
    (island,) = found
    assert island is not None
    epoch = topology.epochs.get(island)
    return lost(island) if epoch is None else IslandIncarnation(island, epoch)


def _over(islands: Iterable[int | None]) -> Fault:
    named = " and ".join(sorted(str(island) for island in islands))
    return Fault(
        UNIMPLEMENTED,
        f"one program or array over the islands {named}: run one per island and copy arrays "
        "between them (jax.device_put)",
    )


def _one(
    summary: Summary, table: HandleTable, topology: IslandTopology, target: IslandIncarnation | None
) -> Route:
    """Return the one island of all handles and devices."""
    islands = {} if target is None else {target.island: target}
    for home in table.homes(summary.reads):
        if home is None:
            faults = (each for each in map(table.home, summary.reads) if isinstance(each, Fault))
            return next(faults)
        found = _holder(home, 0, topology)
        if isinstance(found, Fault):
            return found
        islands[found.island] = IslandIncarnation(found.island, topology.epochs[found.island])
    if not islands:
        return Fault(INVALID, f"a {summary.kind} that names neither handles nor devices")
    if len(islands) > 1:
        return _over(islands)
    return Whole(islands.popitem()[1])


def _split(summary: Summary, table: HandleTable, topology: IslandTopology) -> Route:
    parts: defaultdict[int, list[int]] = defaultdict(list)
    fault = None
    for handle in summary.reads:
        home = table.home(handle)
        if isinstance(home, Parts):
            for island, handles in home.handles:
                if handles and island in topology.epochs:
                    parts[island] += handles
            continue
        found = _holder(home, handle, topology)
        if isinstance(found, Fault):
            fault = found
        else:
            parts[found.island].append(handle)
    return Split({island: tuple(handles) for island, handles in parts.items()}, fault)


def _copy(
    summary: Summary, table: HandleTable, topology: IslandTopology, target: IslandIncarnation | None
) -> Route:
    sources: list[IslandIncarnation] = []
    for handle in summary.reads:
        found = _holder(table.home(handle), handle, topology)
        if isinstance(found, Fault):
            return found
        sources.append(found)
    to = target or (sources[0] if sources else None)
    if to is None:
        return Fault(INVALID, "a copy of no arrays to no devices")
    if all(source.island == to.island for source in sources):
        return Whole(to)
    return Across(to, tuple(sources))
