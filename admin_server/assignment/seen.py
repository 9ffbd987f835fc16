"""The reconciler's knowledge of servers and of actions under way, as values with queries.

Indexed by model as well as by server, so that a query about one model costs its own replicas and
not the cell's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from admin_server.ledger.placement import loaded_overrides
from sax.format import count
from sax.need import Need
from sax.types import JoinedServer, ModelSpec, ServableInfo, ServableStatus, static_version

HELD = (ServableStatus.LOADING, ServableStatus.LOADED, ServableStatus.FAILED)  # can be unloaded
_NAMED = 4  # silent servers listed in a reason


@dataclass(frozen=True, slots=True)
class LoadAction:
    address: str
    spec: ModelSpec

    @property
    def model_id(self) -> str:
        return self.spec.model_id


@dataclass(frozen=True, slots=True)
class UnloadAction:
    address: str
    model_id: str
    why: str


@dataclass(frozen=True, slots=True)
class UpdateAcls:
    """Give a loaded model the ACLs of its spec; nothing is reloaded."""

    address: str
    spec: ModelSpec

    @property
    def model_id(self) -> str:
        return self.spec.model_id


Action = LoadAction | UnloadAction | UpdateAcls
Place = tuple[str, str]  # address, model id


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed load and when it is retried. With a need, the server lacked the memory."""

    version: str
    count: int
    reason: str
    next_try_s: float  # infinite: no retry can mend it, only a change of the model
    retrying: bool = False  # the next try is under way
    need: Need | None = None  # what would be enough, as the server reported

    @property
    def lasting(self) -> bool:
        return math.isinf(self.next_try_s)


@dataclass(frozen=True, slots=True)
class AclPush:
    """The outcome of sending a loaded model its ACLs."""

    acls: Mapping[str, str]
    count: int  # times these were sent
    reason: str  # why the last try failed; "" if accepted
    next_try_s: float  # not retried earlier, unless they change


@dataclass(frozen=True, slots=True)
class SeenServer:
    joined: JoinedServer
    answered: bool = True  # True once GetStatus succeeded since it joined
    trouble: str = ""  # why it does not answer now
    may_hold: frozenset[str] = frozenset()  # models it may hold from before this leader


@dataclass(frozen=True, slots=True)
class SeenModel:
    """Everything known of one model, by address."""

    held: dict[str, ServableInfo] = field(default_factory=dict[str, ServableInfo])
    pending: dict[str, tuple[Action, ...]] = field(default_factory=dict[str, tuple[Action, ...]])
    failures: dict[str, Failure] = field(default_factory=dict[str, Failure])
    pushes: dict[str, AclPush] = field(default_factory=dict[str, AclPush])

    def load(self, address: str) -> LoadAction | None:
        for action in self.pending.get(address, ()):
            if isinstance(action, LoadAction):
                return action
        return None

    def is_leaving(self, address: str) -> bool:
        actions = self.pending.get(address)
        return actions is not None and any(isinstance(action, UnloadAction) for action in actions)

    def is_ready(self, address: str) -> bool:
        """True if clients may use this replica."""
        servable = self.held.get(address)
        loaded = servable is not None and servable.status is ServableStatus.LOADED
        return loaded and not self.is_leaving(address)

    def is_own(self, address: str) -> bool:
        """True if the server there loaded it by its own flags: it is not ours to unload."""
        servable = self.held.get(address)
        return servable is not None and servable.own

    def ready(self) -> list[str]:
        return [address for address in self.held if self.is_ready(address)]

    def reported_bytes(self, spec: ModelSpec) -> int:
        """Bytes of the published version as servers that loaded it report; 0: none did."""
        reported = [s.memory for s in self.held.values() if is_current(s, spec)]
        return max(reported, default=0)

    def least_bytes(self, spec: ModelSpec) -> int:
        """Bytes with which servers like those that loaded it would load it again; 0: unknown.

        Less than it takes where it took all that was free.
        """
        told = [s.parts.least or s.memory for s in self.held.values() if is_current(s, spec)]
        return max(told, default=0)

    def is_at_rest(self, spec: ModelSpec) -> bool:
        """True if all existing replicas are ready and current, with nothing under way or wrong."""
        if self.pending or self.failures or self.pushes:
            return False
        for servable in self.held.values():
            if servable.status is not ServableStatus.LOADED or servable.acls != spec.acls:
                return False
            if not is_current(servable, spec):
                return False
        return True

    def has_current(self, address: str, spec: ModelSpec) -> bool:
        """True if the server has the published version, ready or not."""
        servable = self.held.get(address)
        return servable is not None and is_current(servable, spec)

    def failure(self, address: str, spec: ModelSpec) -> Failure | None:
        """The failed load of the published version there, if any."""
        failure = self.failures.get(address)
        return failure if failure is not None and failure.version in ("", spec.version) else None

    def refusal(self, address: str, spec: ModelSpec) -> Need | None:
        """The published version's need there, if the server lacked it at the last try."""
        failure = self.failure(address, spec)
        return failure.need if failure is not None and not failure.retrying else None

    def refusals(self, spec: ModelSpec) -> dict[str, Need]:
        """By address, the needs reported by servers too small for the published version."""
        needs = {address: self.refusal(address, spec) for address in self.failures}
        return {address: need for address, need in needs.items() if need is not None}

    def has_stale_acls(self, address: str, spec: ModelSpec) -> bool:
        servable = self.held.get(address)
        if servable is None or servable.status is not ServableStatus.LOADED:
            return False
        in_force, push = servable.acls, self.pushes.get(address)
        if not servable.version and not in_force and push is not None and not push.reason:
            in_force = push.acls  # a Saxml server reports none; assume what it accepted
        # In any version: an update's ACLs apply to replicas of the old version too.
        return _filled(in_force) != _filled(spec.acls)

    def push_waits(self, address: str, spec: ModelSpec, now: float) -> bool:
        push = self.pushes.get(address)
        return push is not None and push.acls == spec.acls and now < push.next_try_s


def _filled(acls: Mapping[str, str]) -> dict[str, str]:
    """Drop empty lists: they mean no ACL."""
    return {method: acl for method, acl in acls.items() if acl}


_UNHEARD_OF = SeenModel()


@dataclass(frozen=True)
class Seen:
    """Everything the reconciler knows of the servers."""

    servers: Mapping[str, SeenServer] = field(default_factory=dict[str, SeenServer])
    pending: Mapping[Place, tuple[Action, ...]] = field(
        default_factory=dict[Place, tuple[Action, ...]]
    )
    failures: Mapping[Place, Failure] = field(default_factory=dict[Place, Failure])
    gone: Sequence[str] = ()  # texts on servers pruned lately
    pushes: Mapping[Place, AclPush] = field(default_factory=dict[Place, AclPush])
    needs: Mapping[str, tuple[str, Need]] = field(default_factory=dict[str, tuple[str, Need]])
    indexed: Mapping[str, SeenModel] | None = None  # precomputed `models`

    @cached_property
    def models(self) -> Mapping[str, SeenModel]:
        """The same by model: every model held somewhere or otherwise known."""
        if self.indexed is not None:
            return self.indexed
        return by_model(self.servers, self.pending, self.failures, self.pushes)

    @cached_property
    def silent(self) -> Sequence[str]:
        """Joined servers that have not answered yet, as text."""
        silent = [a for a, server in sorted(self.servers.items()) if not server.answered]
        named = [
            f"{address} has joined but has not answered yet"
            f"{f' ({trouble})' if (trouble := self.servers[address].trouble) else ''}"
            for address in silent[:_NAMED]
        ]
        more = len(silent) - len(named)
        return [*named, f"and so have {count(more, 'other server')}"] if more else named

    @cached_property
    def has_answers(self) -> bool:
        return any(server.answered for server in self.servers.values())

    @cached_property
    def _under_way(self) -> Mapping[str, Sequence[str]]:
        under_way: dict[str, list[str]] = {}
        for address, model_id in sorted(self.pending):
            under_way.setdefault(address, []).append(model_id)
        return under_way

    def under_way(self, address: str) -> Sequence[str]:
        """Models with an action under way there."""
        return self._under_way.get(address, ())

    def model(self, model_id: str) -> SeenModel:
        return self.models.get(model_id, _UNHEARD_OF)

    def need(self, spec: ModelSpec) -> Need | None:
        """Need of the published version, reported by servers that were too small or too full."""
        version, need = self.needs.get(spec.model_id, ("", None))
        return need if version == spec.version else None


def by_model(
    servers: Mapping[str, SeenServer],
    pending: Mapping[Place, tuple[Action, ...]],
    failures: Mapping[Place, Failure],
    pushes: Mapping[Place, AclPush],
) -> dict[str, SeenModel]:
    models: dict[str, SeenModel] = defaultdict(SeenModel)
    for address, server in servers.items():
        for servable in server.joined.servables:
            if servable.status is not ServableStatus.NONE:
                models[servable.model_id].held.setdefault(address, servable)
    for (address, model_id), actions in pending.items():
        models[model_id].pending[address] = actions
    for (address, model_id), failure in failures.items():
        models[model_id].failures[address] = failure
    for (address, model_id), push in pushes.items():
        models[model_id].pushes[address] = push
    return dict(models)


def is_current(servable: ServableInfo, spec: ModelSpec) -> bool:
    """True if it is the published version. Saxml's servers report none: assumed current. So is
    what a server loaded by its own flags, if it is made of the same."""
    if servable.version in ("", spec.version):
        return True
    ours = replace(spec, overrides=loaded_overrides(spec.overrides))
    return servable.own and servable.version == static_version(ours)


def waits(failure: Failure | None, now: float) -> bool:
    return failure is not None and not failure.retrying and now < failure.next_try_s
