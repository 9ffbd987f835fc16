"""What the reconciler knows of the servers and of what is under way: values, and questions to them.

Decides nothing; knows nothing of RPCs, clocks or storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sax.types import JoinedServer, ModelSpec, ServableInfo, ServableStatus


@dataclass(frozen=True, slots=True)
class Load:
    """Tell a server to load a model."""

    address: str
    spec: ModelSpec

    @property
    def model_id(self) -> str:
        return self.spec.model_id


@dataclass(frozen=True, slots=True)
class Unload:
    """Tell a server to unload a model."""

    address: str
    model_id: str
    why: str


Action = Load | Unload
Place = tuple[str, str]  # address, model id


@dataclass(frozen=True, slots=True)
class Failure:
    """A load that failed, and when it is tried again."""

    version: str
    count: int
    reason: str
    next_try_s: float
    retrying: bool = False  # the next try is under way


@dataclass(frozen=True, slots=True)
class SeenServer:
    """A joined server as last seen."""

    joined: JoinedServer
    answered: bool = True  # has it answered GetStatus since it joined?
    trouble: str = ""  # why it does not answer now


@dataclass(frozen=True, slots=True)
class Seen:
    """All the reconciler knows of the servers."""

    servers: Mapping[str, SeenServer] = field(default_factory=dict[str, SeenServer])
    pending: Mapping[Place, tuple[Action, ...]] = field(
        default_factory=dict[Place, tuple[Action, ...]]
    )
    failures: Mapping[Place, Failure] = field(default_factory=dict[Place, Failure])
    gone: Sequence[str] = ()  # servers pruned lately, in words


def is_current(servable: ServableInfo, spec: ModelSpec) -> bool:
    """Does the servable hold the published version? Saxml's servers do not tell: then yes."""
    return servable.version in ("", spec.version)


def servable_at(seen: Seen, place: Place) -> ServableInfo | None:
    """The model as its server has it; None if it has not."""
    address, model_id = place
    server = seen.servers.get(address)
    for servable in server.joined.servables if server else ():
        if servable.model_id == model_id and servable.status is not ServableStatus.NONE:
            return servable
    return None


def pending_load(seen: Seen, place: Place) -> Load | None:
    """The load under way there."""
    return next((a for a in seen.pending.get(place, ()) if isinstance(a, Load)), None)


def is_leaving(seen: Seen, place: Place) -> bool:
    """Is an unload under way there?"""
    return any(isinstance(action, Unload) for action in seen.pending.get(place, ()))


def is_ready(seen: Seen, place: Place) -> bool:
    """May clients use this replica?"""
    servable = servable_at(seen, place)
    loaded = servable is not None and servable.status is ServableStatus.LOADED
    return loaded and not is_leaving(seen, place)


def has_current(seen: Seen, address: str, spec: ModelSpec) -> bool:
    """Does the server have the published version, ready or not?"""
    servable = servable_at(seen, (address, spec.model_id))
    return servable is not None and is_current(servable, spec)


def failure_at(seen: Seen, address: str, spec: ModelSpec) -> Failure | None:
    """How the published version failed to load there."""
    failure = seen.failures.get((address, spec.model_id))
    return failure if failure is not None and failure.version in ("", spec.version) else None


def waits(failure: Failure | None, now: float) -> bool:
    """Is the next try of a failed load still to come?"""
    return failure is not None and not failure.retrying and now < failure.next_try_s
