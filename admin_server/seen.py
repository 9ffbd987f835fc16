"""What the reconciler knows of the servers and of what is under way: values, and questions to them.

Kept by model as well as by server, so that a question about one model costs its own replicas and
not the cell's. Decides nothing; knows nothing of RPCs, clocks or storage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from admin_server.words import count
from sax.need import Need
from sax.types import JoinedServer, ModelSpec, ServableInfo, ServableStatus

HELD = (ServableStatus.LOADING, ServableStatus.LOADED, ServableStatus.FAILED)  # can be unloaded
_NAMED = 4  # how many silent servers a reason lists


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


@dataclass(frozen=True, slots=True)
class UpdateAcls:
    """Give a loaded model the access control lists of its spec; nothing is loaded anew."""

    address: str
    spec: ModelSpec

    @property
    def model_id(self) -> str:
        return self.spec.model_id


Action = Load | Unload | UpdateAcls
Place = tuple[str, str]  # address, model id


@dataclass(frozen=True, slots=True)
class Failure:
    """A load that failed, and when it is tried again. With a need, the server lacked the room."""

    version: str
    count: int
    reason: str
    next_try_s: float
    retrying: bool = False  # the next try is under way
    need: Need | None = None  # what the server said would be enough


@dataclass(frozen=True, slots=True)
class AclPush:
    """What came of giving a loaded model its access control lists."""

    acls: Mapping[str, str]
    count: int  # how often these were sent
    reason: str  # why the last try failed; "" if the server took them
    next_try_s: float  # not again before, unless they change


@dataclass(frozen=True, slots=True)
class SeenServer:
    """A joined server as last seen."""

    joined: JoinedServer
    answered: bool = True  # has it answered GetStatus since it joined?
    trouble: str = ""  # why it does not answer now
    may_hold: frozenset[str] = frozenset()  # models it may have had before this admin server led


@dataclass(frozen=True, slots=True)
class SeenModel:
    """What is known of one model, by address."""

    held: dict[str, ServableInfo] = field(default_factory=dict[str, ServableInfo])
    pending: dict[str, tuple[Action, ...]] = field(default_factory=dict[str, tuple[Action, ...]])
    failures: dict[str, Failure] = field(default_factory=dict[str, Failure])
    pushes: dict[str, AclPush] = field(default_factory=dict[str, AclPush])

    def load(self, address: str) -> Load | None:
        """The load under way there."""
        for action in self.pending.get(address, ()):
            if isinstance(action, Load):
                return action
        return None

    def is_leaving(self, address: str) -> bool:
        """Is an unload under way there?"""
        actions = self.pending.get(address)
        return actions is not None and any(isinstance(action, Unload) for action in actions)

    def is_ready(self, address: str) -> bool:
        """May clients use this replica?"""
        servable = self.held.get(address)
        loaded = servable is not None and servable.status is ServableStatus.LOADED
        return loaded and not self.is_leaving(address)

    def ready(self) -> list[str]:
        """The replicas that clients may use."""
        return [address for address in self.held if self.is_ready(address)]

    def told_bytes(self, spec: ModelSpec) -> int:
        """What the published version takes, as servers that loaded it told; 0: none did."""
        told = [s.memory for s in self.held.values() if is_current(s, spec)]
        return max(told, default=0)

    def is_at_rest(self, spec: ModelSpec) -> bool:
        """Is every replica that there is ready and current, and nothing under way or wrong?"""
        if self.pending or self.failures or self.pushes:
            return False
        for servable in self.held.values():
            if servable.status is not ServableStatus.LOADED or servable.acls != spec.acls:
                return False
            if servable.version != spec.version and servable.version:
                return False
        return True

    def has_current(self, address: str, spec: ModelSpec) -> bool:
        """Does the server have the published version, ready or not?"""
        servable = self.held.get(address)
        return servable is not None and is_current(servable, spec)

    def failure(self, address: str, spec: ModelSpec) -> Failure | None:
        """How the published version failed to load there."""
        failure = self.failures.get(address)
        return failure if failure is not None and failure.version in ("", spec.version) else None

    def refusal(self, address: str, spec: ModelSpec) -> Need | None:
        """What the published version needs there, if that server lacked it when it last tried."""
        failure = self.failure(address, spec)
        return failure.need if failure is not None and not failure.retrying else None

    def refusals(self, spec: ModelSpec) -> dict[str, Need]:
        """Of every server that lacked the room for the published version, by address."""
        needs = {address: self.refusal(address, spec) for address in self.failures}
        return {address: need for address, need in needs.items() if need is not None}

    def has_stale_acls(self, address: str, spec: ModelSpec) -> bool:
        """Is the model loaded there with other access control lists than its spec's?"""
        servable = self.held.get(address)
        if servable is None or servable.status is not ServableStatus.LOADED:
            return False
        in_force, push = servable.acls, self.pushes.get(address)
        if not servable.version and not in_force and push is not None and not push.reason:
            in_force = push.acls  # a Saxml server reports none; it has what it took
        # Of whatever version: whom an update shuts out is shut out of the old replicas as well.
        return _filled(in_force) != _filled(spec.acls)

    def push_waits(self, address: str, spec: ModelSpec, now: float) -> bool:
        """Were these access control lists sent there in vain, and is it too early to try again?"""
        push = self.pushes.get(address)
        return push is not None and push.acls == spec.acls and now < push.next_try_s


def _filled(acls: Mapping[str, str]) -> dict[str, str]:
    """An empty list is none."""
    return {method: acl for method, acl in acls.items() if acl}


_UNHEARD_OF = SeenModel()


@dataclass(frozen=True)
class Seen:
    """All the reconciler knows of the servers."""

    servers: Mapping[str, SeenServer] = field(default_factory=dict[str, SeenServer])
    pending: Mapping[Place, tuple[Action, ...]] = field(
        default_factory=dict[Place, tuple[Action, ...]]
    )
    failures: Mapping[Place, Failure] = field(default_factory=dict[Place, Failure])
    gone: Sequence[str] = ()  # servers pruned lately, in words
    pushes: Mapping[Place, AclPush] = field(default_factory=dict[Place, AclPush])
    needs: Mapping[str, tuple[str, Need]] = field(default_factory=dict[str, tuple[str, Need]])
    indexed: Mapping[str, SeenModel] | None = None  # `models`, where somebody kept it

    @cached_property
    def models(self) -> Mapping[str, SeenModel]:
        """The same by model: every model that a server has or that something is known of."""
        if self.indexed is not None:
            return self.indexed
        return by_model(self.servers, self.pending, self.failures, self.pushes)

    @cached_property
    def silent(self) -> Sequence[str]:
        """The joined servers that have not answered yet, in words."""
        silent = [a for a, server in sorted(self.servers.items()) if not server.answered]
        told = [
            f"{address} has joined but has not answered yet"
            f"{f' ({trouble})' if (trouble := self.servers[address].trouble) else ''}"
            for address in silent[:_NAMED]
        ]
        more = len(silent) - len(told)
        return [*told, f"and {count(more, 'other server')} likewise"] if more else told

    @cached_property
    def has_answers(self) -> bool:
        """Has any server answered?"""
        return any(server.answered for server in self.servers.values())

    @cached_property
    def _under_way(self) -> Mapping[str, Sequence[str]]:
        under_way: dict[str, list[str]] = {}
        for address, model_id in sorted(self.pending):
            under_way.setdefault(address, []).append(model_id)
        return under_way

    def under_way(self, address: str) -> Sequence[str]:
        """The models for which an action is under way there."""
        return self._under_way.get(address, ())

    def model(self, model_id: str) -> SeenModel:
        """What is known of one model."""
        return self.models.get(model_id, _UNHEARD_OF)

    def need(self, spec: ModelSpec) -> Need | None:
        """What servers that were too small, or too full, said of the published version."""
        version, need = self.needs.get(spec.model_id, ("", None))
        return need if version == spec.version else None


def by_model(
    servers: Mapping[str, SeenServer],
    pending: Mapping[Place, tuple[Action, ...]],
    failures: Mapping[Place, Failure],
    pushes: Mapping[Place, AclPush],
) -> dict[str, SeenModel]:
    """The same, by model."""
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
    """Does the servable hold the published version? Saxml's servers do not tell: then yes."""
    return servable.version in ("", spec.version)


def waits(failure: Failure | None, now: float) -> bool:
    """Is the next try of a failed load still to come?"""
    return failure is not None and not failure.retrying and now < failure.next_try_s
