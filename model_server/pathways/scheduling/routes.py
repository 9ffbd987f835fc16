"""Routes: which islands a request goes to.

Pure. A program runs on one island; arrays are on one island; only copies go from one to another.
Arrays of an island's earlier life are lost, which the client learns as DATA_LOSS.
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
    IslandLife,
    Parts,
)
from model_server.pathways.scheduling.summary import How, Summary


class Ground(NamedTuple):
    """The islands as they are now."""

    islands: Mapping[int, int]  # device id -> island
    epochs: Mapping[int, int]  # of the islands that are up


class Whole(NamedTuple):
    """The request goes to one island as it is."""

    life: IslandLife


class StandIn(NamedTuple):
    """Another island answers, about this device of its own in place of the one that is down."""

    life: IslandLife
    device: int


class Split(NamedTuple):
    """Parts of the request go to islands: handles by island. None: nothing is left to do."""

    parts: Mapping[int, tuple[int, ...]]
    fault: Fault | None = None  # of the handles that are on no island


class Across(NamedTuple):
    """Arrays are copied to an island, each from where it is."""

    to: IslandLife
    sources: tuple[IslandLife, ...]  # one per array


Route = Whole | StandIn | Split | Across | Fault


def route(summary: Summary, table: HandleTable, ground: Ground) -> Route:
    """Decide where a request goes. A Fault is its answer, and that of all that it would make."""
    if summary.row.how is How.SPLIT:
        return _split(summary, table, ground)
    if summary.row.how is How.ANY:
        return _any(ground)
    target = _target(summary.devices, ground)
    if isinstance(target, Fault):
        return _like(ground) or target if summary.row.how is How.LIKE else target
    if summary.row.how is How.COPY:
        return _copy(summary, table, ground, target)
    return _one(summary, table, ground, target)


def standing(
    home: Home | None, handle: int, table: HandleTable, ground: Ground
) -> IslandLife | Fault:
    """Return an island that holds what is under a handle, or why none does."""
    found = table.home(handle) if home is None else home
    if isinstance(found, Fault):
        return found
    if isinstance(found, Parts):
        return Fault(INVALID, f"{handle} is a future: only check_future takes it")
    epoch = ground.epochs.get(found.island)
    if epoch is None:
        return lost(found.island)
    return found if found.epoch in (epoch, ALWAYS) else lost(found.island, back=True)


def lost(island: int, back: bool = False) -> Fault:
    """Return the fault of what was on an island that is, or was, lost."""
    remedy = (
        "it is back: make the array again"
        if back
        else "go on with the devices of other islands until it is back"
    )
    return Fault(DATA_LOSS, f"island {island} was lost with all arrays on it; {remedy}")


def _any(ground: Ground) -> Route:
    if not ground.epochs:
        return Fault(UNAVAILABLE, "no island is up: start its workers, or wait until they are back")
    island = min(ground.epochs)
    return Whole(IslandLife(island, ground.epochs[island]))


def _like(ground: Ground) -> StandIn | None:
    """Return a device that is up: islands are alike."""
    for device, island in ground.islands.items():
        if island in ground.epochs:
            return StandIn(IslandLife(island, ground.epochs[island]), device)
    return None


def _target(devices: Iterable[int], ground: Ground) -> IslandLife | None | Fault:
    """Return the island of a request's devices; None: it names none."""
    found = dict.fromkeys(map(ground.islands.get, devices))
    if None in found:
        strange = next(each for each in devices if each not in ground.islands)
        return Fault(INVALID, f"no island has a device {strange}: ask jax.devices() again")
    if not found:
        return None
    if len(found) > 1:
        return _over(found)
    (island,) = found
    assert island is not None
    epoch = ground.epochs.get(island)
    return lost(island) if epoch is None else IslandLife(island, epoch)


def _over(islands: Iterable[int | None]) -> Fault:
    named = " and ".join(sorted(str(island) for island in islands))
    return Fault(
        UNIMPLEMENTED,
        f"one program or array over the islands {named}: run one per island and copy arrays "
        "between them (jax.device_put)",
    )


def _one(summary: Summary, table: HandleTable, ground: Ground, target: IslandLife | None) -> Route:
    """Return the one island of all handles and devices."""
    islands = {} if target is None else {target.island: target}
    for home in table.homes(summary.reads):
        if home is None:
            return next(
                found for handle in summary.reads if isinstance(found := table.home(handle), Fault)
            )
        found = standing(home, 0, table, ground)
        if isinstance(found, Fault):
            return found
        islands[found.island] = IslandLife(found.island, ground.epochs[found.island])
    if not islands:
        return Fault(INVALID, f"a {summary.kind} that names neither handles nor devices")
    if len(islands) > 1:
        return _over(islands)
    return Whole(islands.popitem()[1])


def _split(summary: Summary, table: HandleTable, ground: Ground) -> Route:
    parts: defaultdict[int, list[int]] = defaultdict(list)
    fault = None
    for handle in summary.reads:
        home = table.home(handle)
        if isinstance(home, Parts):
            for island, handles in home.handles:
                if handles and island in ground.epochs:
                    parts[island] += handles
            continue
        found = standing(home, handle, table, ground)
        if isinstance(found, Fault):
            fault = found
        else:
            parts[found.island].append(handle)
    return Split({island: tuple(handles) for island, handles in parts.items()}, fault)


def _copy(summary: Summary, table: HandleTable, ground: Ground, target: IslandLife | None) -> Route:
    sources: list[IslandLife] = []
    for handle in summary.reads:
        found = standing(table.home(handle), handle, table, ground)
        if isinstance(found, Fault):
            return found
        sources.append(found)
    to = target or (sources[0] if sources else None)
    if to is None:
        return Fault(INVALID, "a copy of no arrays to no devices")
    if all(source.island == to.island for source in sources):
        return Whole(to)
    return Across(to, tuple(sources))
