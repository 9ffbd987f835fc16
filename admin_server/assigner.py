"""Which servers should serve which models: a pure, deterministic choice.

Keeps what is there, gives every model its first replica before any gets a second, and fills the
servers with the fewest models first. A server holds at most one replica of a model, any number of
models, and no more bytes than it has, as far as they are known. Knows nothing of time, versions,
RPCs or how a model gets loaded; its report says in words why a replica has no server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sax.types import JoinedServer, ModelSpec

_SAXML_PREFIX = "saxml.server."
_NAMED = 4  # how many servers or paths a sentence lists


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where each model should be, and why it is not in more places."""

    addresses: Mapping[str, tuple[str, ...]]  # by model, the kept ones first
    reasons: Mapping[str, tuple[str, ...]]  # by model, one for each missing replica


@dataclass(slots=True)
class _Room:
    """One server while it is being filled."""

    server: JoinedServer
    free: int | None  # bytes; None: not known
    models: set[str] = field(default_factory=set[str])

    @property
    def address(self) -> str:
        return self.server.info.address

    def take(self, model_id: str, need: int | None) -> None:
        self.models.add(model_id)
        if self.free is not None and need is not None:
            self.free -= need

    def fits(self, need: int | None) -> bool:
        return self.free is None or need is None or need <= self.free


def assign(
    specs: Sequence[ModelSpec],
    servers: Sequence[JoinedServer],
    current: Mapping[str, Sequence[str]],
    failed: Mapping[str, frozenset[str]] | None = None,
) -> Assignment:
    """Choose servers for every spec.

    `current` names where each model is or is on its way to, best replica first: when there are too
    many the last ones go. `failed` names servers that could not load it: the last resort.
    """
    rooms = {s.info.address: _Room(s, s.info.memory_total or None) for s in servers}
    needs = {spec.model_id: bytes_of(spec, servers) for spec in specs}
    failed = failed or {}
    order = sorted(specs, key=lambda spec: (-(needs[spec.model_id] or 0), spec.model_id))
    chosen = {spec.model_id: _keep(spec, rooms, current, failed, needs) for spec in order}
    for replica in range(len(servers)):
        for spec in order:
            if len(chosen[spec.model_id]) == replica < spec.replicas:
                chosen[spec.model_id] += _place(spec, rooms, failed, needs)
    return Assignment(
        addresses={model_id: tuple(addresses) for model_id, addresses in sorted(chosen.items())},
        reasons={
            spec.model_id: (_reason(spec, list(rooms.values()), needs),)
            * (spec.replicas - len(chosen[spec.model_id]))
            for spec in sorted(specs, key=lambda spec: spec.model_id)
        },
    )


def bytes_of(spec: ModelSpec, servers: Sequence[JoinedServer]) -> int | None:
    """What this version of the model takes on a server, if any server has told."""
    told = [
        servable.memory
        for server in servers
        for servable in server.servables
        if servable.model_id == spec.model_id and servable.version in ("", spec.version)
    ]
    return max(told, default=0) or None


def serves(server: JoinedServer, model_path: str) -> bool:
    """Does the server know this path, written with or without the `saxml.server.` prefix?"""
    return _bare(model_path) in map(_bare, server.info.model_paths)


def describe_paths(servers: Sequence[JoinedServer]) -> str:
    """The model paths that these servers serve, in words."""
    paths = sorted({path for server in servers for path in server.info.model_paths})
    return _listing(paths) or "no path at all"


def human_bytes(number: int) -> str:
    """1536 -> "1.5 KiB"."""
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{number} B"
        size /= 1024
    return f"{size:.1f} TiB"


def _bare(path: str) -> str:
    return path.removeprefix(_SAXML_PREFIX)


def _keep(
    spec: ModelSpec,
    rooms: Mapping[str, _Room],
    current: Mapping[str, Sequence[str]],
    failed: Mapping[str, frozenset[str]],
    needs: Mapping[str, int | None],
) -> list[str]:
    """The replicas that stay where they are."""
    kept: list[str] = []
    avoided = failed.get(spec.model_id, frozenset())
    for address in current.get(spec.model_id, ()):
        room = rooms.get(address)
        good = room is not None and serves(room.server, spec.model_path)
        if room is not None and good and len(kept) < spec.replicas and address not in avoided:
            room.take(spec.model_id, needs[spec.model_id])
            kept.append(address)
    return kept


def _place(
    spec: ModelSpec,
    rooms: Mapping[str, _Room],
    failed: Mapping[str, frozenset[str]],
    needs: Mapping[str, int | None],
) -> list[str]:
    """One more replica of the model, if any server can take it."""
    need = needs[spec.model_id]
    avoided = failed.get(spec.model_id, frozenset())
    candidates = [
        room
        for room in rooms.values()
        if spec.model_id not in room.models
        and serves(room.server, spec.model_path)
        and room.fits(need)
    ]
    if not candidates:
        return []
    best = min(
        candidates,
        key=lambda room: (
            room.address in avoided,
            len(room.models),
            -(room.free or 0),
            room.address,
        ),
    )
    best.take(spec.model_id, need)
    return [best.address]


def _reason(spec: ModelSpec, rooms: Sequence[_Room], needs: Mapping[str, int | None]) -> str:
    """Why the next replica of the model has no server."""
    if not rooms:
        return "no model server has joined this cell"
    able = [room for room in rooms if serves(room.server, spec.model_path)]
    if not able:
        return (
            f"no joined server serves {spec.model_path}; "
            f"they serve {describe_paths([room.server for room in rooms])}"
        )
    others = [room for room in able if spec.model_id not in room.models]
    if not others:
        return (
            f"{spec.replicas} replicas are wanted, one for each server, but only "
            f"{len(able)} joined server{'s serve' if len(able) > 1 else ' serves'} "
            f"{spec.model_path}"
        )
    free = sorted(f"{room.address} has {human_bytes(room.free or 0)} free" for room in others)
    return f"needs {human_bytes(needs[spec.model_id] or 0)} of memory, but {_listing(free)}"


def _listing(words: Sequence[str]) -> str:
    more = len(words) - _NAMED
    return ", ".join([*words[:_NAMED], *([f"and {more} more"] if more > 0 else [])])
