"""The assigner: chooses servers for models, deterministically and without side effects.

An adapter goes where its base is loaded, after all others. Replicas stay where they are, every
model gets its first replica before any gets a second, and large models are placed before small
ones, each on its tightest fit; where bytes are unknown, on the server with the fewest models. A
server holds at most one replica of a model, any number of models (if reserved, only those it is
reserved for), and no more bytes than it has, as far as they are known. Every replica without a
server gets a reason.

Cost is proportional to servers + models + replicas, never to their products.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from admin_server.assignment.fleet import Fleet, Needs, Node, NodeKind
from admin_server.ledger.placement import (
    MODEL_TAG,
    ServerDemand,
    demand_of,
    devices_of,
    stated_bytes,
)
from sax.adapters import base_of
from sax.format import count, describe_paths, human_bytes, listing
from sax.need import Need
from sax.types import JoinedServer, ModelSpec

_NOWHERE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Assignment:
    addresses: Mapping[str, tuple[str, ...]]  # by model, kept servers first
    reasons: Mapping[str, tuple[str, ...]]  # by model, one for each missing replica
    needs: Needs
    looks: int  # servers examined: the cost of the search
    # By model and address, the spec of replicas that are to have a canary's version.
    canaries: Mapping[str, Mapping[str, ModelSpec]] = field(
        default_factory=dict[str, Mapping[str, ModelSpec]]
    )

    def target(self, spec: ModelSpec, address: str) -> ModelSpec:
        """The spec that a server is to have: the model's, or that of its canary."""
        return self.canaries.get(spec.model_id, {}).get(address, spec)


@dataclass(frozen=True, slots=True)
class Settled:
    """A model that stays where it is, with nothing to decide."""

    spec: ModelSpec
    addresses: Sequence[str]
    reported_bytes: int  # 0: unknown


def assign(
    specs: Sequence[ModelSpec],
    servers: Sequence[JoinedServer],
    current: Mapping[str, Sequence[str]],
    failed: Mapping[str, frozenset[str]] | None = None,
    *,
    reported_bytes: Mapping[str, int] | None = None,
    least_bytes: Mapping[str, int] | None = None,
    settled: Iterable[Settled] = (),
    learned: Mapping[str, Need] | None = None,
    refused: Mapping[str, Mapping[str, Need]] | None = None,
) -> Assignment:
    """Choose servers for every spec.

    `current` names where each model is or is being loaded, best replica first: surplus replicas are
    dropped from the end. `failed` names servers that could not load it: a last resort.
    `reported_bytes` is the memory of each model as servers reported it, if already known, and
    `least_bytes` what would be enough for one more replica, if that is less. `settled`
    are other models that only occupy memory. `learned` is what a model needs according to servers
    that refused it for lack of memory; `refused` names those servers by model, with the need on
    each.
    """
    reported = _reported(specs, servers) if reported_bytes is None else reported_bytes
    filling = _Filling(
        specs, servers, failed or {}, Needs(reported, learned, least_bytes), refused or {}
    )
    filling.occupy(settled)
    filling.keep(current)
    filling.place()
    by_name = sorted(specs, key=lambda spec: spec.model_id)
    return Assignment(
        {spec.model_id: tuple(filling.chosen[spec.model_id]) for spec in by_name},
        {spec.model_id: filling.reasons(spec) for spec in by_name},
        filling.needs,
        filling.fleet.looks,
    )


def _reported(specs: Sequence[ModelSpec], servers: Sequence[JoinedServer]) -> dict[str, int]:
    versions = {spec.model_id: ("", spec.version) for spec in specs}
    reported: dict[str, int] = {}
    for servable in (servable for server in servers for servable in server.servables):
        if servable.version in versions.get(servable.model_id, ()):
            reported[servable.model_id] = max(servable.memory, reported.get(servable.model_id, 0))
    return reported


class _Filling:
    """The servers as they fill up, and the addresses chosen so far."""

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        servers: Sequence[JoinedServer],
        failed: Mapping[str, frozenset[str]],
        needs: Needs,
        refused: Mapping[str, Mapping[str, Need]],
    ) -> None:
        self._failed = failed
        self._refused = refused
        self._demands = {spec.model_id: demand_of(spec, needs.learned(spec)) for spec in specs}
        # A loaded replica stays, whatever its next version needs.
        self._stated = {spec.model_id: demand_of(spec) for spec in specs}
        self.fleet = Fleet(servers, [*self._demands.values(), *self._stated.values()])
        self.needs = needs
        most = self.fleet.most_devices
        bytes_of = {spec.model_id: self.needs.of(spec, most) or 0 for spec in specs}
        self._order = sorted(specs, key=lambda spec: (-bytes_of[spec.model_id], spec.model_id))
        self._options: dict[str, list[tuple[NodeKind, int | None]]] = {}
        self.chosen: dict[str, list[str]] = {spec.model_id: [] for spec in specs}
        self._adapters = {spec.model_id: base for spec in specs if (base := base_of(spec))}
        self._settled: dict[str, Sequence[str]] = {}

    def occupy(self, settled: Iterable[Settled]) -> None:
        for one in settled:
            self._settled[one.spec.model_id] = one.addresses
            for address in one.addresses:
                kind = self.fleet.kind_at[address]
                need = one.reported_bytes or stated_bytes(one.spec, kind.devices)
                kind.give(kind.nodes[address], one.spec.model_id, need)

    def keep(self, current: Mapping[str, Sequence[str]]) -> None:
        """Keep replicas where they are, starting with those already in memory."""
        nodes = self.fleet.nodes
        rest: list[tuple[ModelSpec, list[Node]]] = []
        for spec in self._order:
            if spec.model_id in self._adapters:
                continue  # once the bases are known
            there = [nodes[a] for a in current.get(spec.model_id, ()) if a in nodes]
            loaded = [node for node in there if node.has_loaded(spec.model_id)]
            self._keep(spec, loaded, self._stated[spec.model_id])
            if len(loaded) < len(there):
                rest.append((spec, [node for node in there if node not in loaded]))
        for spec, others in rest:
            fitting = [node for node in others if node.fits(self._need(spec, node))]
            self._keep(spec, fitting, self._demands[spec.model_id])
        for spec in self._order:
            if spec.model_id in self._adapters:
                there = [nodes[a] for a in current.get(spec.model_id, ()) if a in nodes]
                with_base = self._with_base(spec)
                kept = [node for node in there if node.address in with_base]
                self._keep(spec, kept, self._stated[spec.model_id])

    def place(self) -> None:
        """Place one replica at a time, fewest replicas first, until nothing more fits."""
        place_of = {spec.model_id: number for number, spec in enumerate(self._order)}
        short: dict[int, list[ModelSpec]] = {}
        for spec in self._order:
            adapter = spec.model_id in self._adapters
            if not adapter and (have := len(self.chosen[spec.model_id])) < spec.replicas:
                short.setdefault(have, []).append(spec)
        while short:
            have = min(short)
            for spec in sorted(short.pop(have), key=lambda spec: place_of[spec.model_id]):
                # Servers only fill up: a model that fits nowhere now will not fit later.
                if self._place(spec) and have + 1 < spec.replicas:
                    short.setdefault(have + 1, []).append(spec)
        for spec in self._order:
            if spec.model_id in self._adapters:
                self._place_adapter(spec)

    def reasons(self, spec: ModelSpec) -> tuple[str, ...]:
        missing = spec.replicas - len(self.chosen[spec.model_id])
        if missing <= 0:
            return ()
        if base := self._adapters.get(spec.model_id):
            published = base in self.chosen or base in self._settled
            ready = len(self._with_base(spec))
            return (why_no_base(spec, base, ready, published=published),) * missing
        demand, chosen = self._demands[spec.model_id], self.chosen[spec.model_id]
        return (why_short(spec, demand, self.fleet, self.needs, chosen),) * missing

    def _keep(self, spec: ModelSpec, nodes: Sequence[Node], demand: ServerDemand) -> None:
        """Keep servers that still qualify, up to the wanted count."""
        if not nodes:
            return
        chosen, able = self.chosen[spec.model_id], self.fleet.able(demand)
        failed = self._failed.get(spec.model_id, _NOWHERE)
        for node in nodes:
            kind = self.fleet.kind_at[node.address]
            if len(chosen) < spec.replicas and kind in able and node.address not in failed:
                kind.give(node, spec.model_id, self._need(spec, node))
                chosen.append(node.address)

    def _need(self, spec: ModelSpec, node: Node) -> int | None:
        devices = self.fleet.kind_at[node.address].devices
        if node.has_loaded(spec.model_id):
            return self.needs.of_loaded(spec, node, devices)
        return self.needs.of(spec, devices)

    def _place(self, spec: ModelSpec) -> bool:
        """Place one more replica; False if no server can take it."""
        chosen, failed = self.chosen[spec.model_id], self._failed.get(spec.model_id)
        options = self._options_of(spec)
        closed = {*chosen, *self._too_full(spec)} if spec.model_id in self._refused else chosen
        best = _best(options, {*closed, *failed}) if failed else None
        best = best or _best(options, closed)
        if best is None:
            return False
        kind, node, need = best
        kind.give(node, spec.model_id, need)
        chosen.append(node.address)
        return True

    def _with_base(self, spec: ModelSpec) -> list[str]:
        """The servers that have an adapter's base, and keep it."""
        base = self._adapters[spec.model_id]
        stays = self.chosen.get(base) or self._settled.get(base, ())
        return [a for a in stays if self.fleet.nodes[a].has_loaded(base)]

    def _place_adapter(self, spec: ModelSpec) -> None:
        """Place the missing replicas, on the servers with the fewest models first."""
        chosen, demand = self.chosen[spec.model_id], self._demands[spec.model_id]
        failed = self._failed.get(spec.model_id, _NOWHERE)
        able, nodes = self.fleet.able(demand), self.fleet.nodes
        free = [
            address
            for address in self._with_base(spec)
            if address not in chosen and self.fleet.kind_at[address] in able
        ]
        free.sort(key=lambda address: (address in failed, len(nodes[address].models), address))
        for address in free[: max(0, spec.replicas - len(chosen))]:
            self.fleet.kind_at[address].give(nodes[address], spec.model_id, None)
            chosen.append(address)

    def _too_full(self, spec: ModelSpec) -> Iterator[str]:
        """Servers that refused the model and still lack the memory it needs there."""
        for address, need in self._refused[spec.model_id].items():
            node = self.fleet.nodes.get(address)
            if node is not None and not node.fits(need.memory):
                yield address

    def _options_of(self, spec: ModelSpec) -> list[tuple[NodeKind, int | None]]:
        """Kinds of servers that qualify, with the bytes the model takes on each."""
        options = self._options.get(spec.model_id)
        if options is None:
            able = self.fleet.able(self._demands[spec.model_id])
            options = [(kind, self.needs.of(spec, kind.devices)) for kind in able]
            self._options[spec.model_id] = options
        return options


def _best(
    options: Sequence[tuple[NodeKind, int | None]], taken: Collection[str]
) -> tuple[NodeKind, Node, int | None] | None:
    winner: tuple[NodeKind, Node, int | None] | None = None
    least: tuple[bool, tuple[int, int, int, str]] | None = None
    for kind, need in options:
        best = kind.best(need, taken)
        if best is None:
            continue
        # Reserved servers first: no other model can use them.
        rank = (not kind.reserved, best[0])
        if least is None or rank < least:
            least, winner = rank, (kind, best[1], need)
    return winner


# Explain why a replica has no server, and what would help.
#
# Works on kinds of servers, so that explaining a full cell costs no more than filling an empty
# one.


def why_short(
    spec: ModelSpec, demand: ServerDemand, fleet: Fleet, needs: Needs, chosen: Collection[str]
) -> str:
    """Why the model has no server beyond those chosen."""
    if not fleet.nodes:
        return "no model server has joined this cell"
    on_path = [kind for kind in fleet.open_to(spec.model_id) if demand.path in kind.paths]
    if not on_path and fleet.is_served(demand.path):
        return (
            f"every joined server that serves {spec.model_path} is reserved for other models by "
            f"a {MODEL_TAG}NAME tag"
        )
    if not on_path:
        return (
            f"no joined server serves {spec.model_path}; they serve {describe_paths(fleet.paths)}"
        )
    with_tags = [kind for kind in on_path if kind.tags.issuperset(demand.tags)]
    if not with_tags:
        return _no_tags(spec, demand, on_path)
    able = fleet.able(demand)
    if not able:
        need = needs.learned(spec)
        if need is not None and need.devices >= demand.devices:
            return _too_small(demand, need, with_tags)
        return _no_devices(demand, with_tags)
    if len(chosen) == sum(len(kind.nodes) for kind in able):
        return _no_more_servers(spec, demand, len(chosen))
    return _no_memory(spec, able, chosen, needs)


def why_no_base(spec: ModelSpec, base: str, ready: int, *, published: bool) -> str:
    """Why an adapter has no further server: it goes where its base is loaded."""
    if not published:
        return f"its base {base} is not published"
    if not ready:
        return f"its base {base} is not loaded on any server yet"
    if ready < spec.replicas:
        return (
            f"{spec.replicas} replicas are wanted, but its base {base} is loaded on only "
            f"{count(ready, 'server')}"
        )
    return f"no server with its base {base} meets its placement"


def _no_tags(spec: ModelSpec, demand: ServerDemand, kinds: list[NodeKind]) -> str:
    nearest = max(
        kinds, key=lambda kind: (len(kind.tags), -len(kind.nodes), next(iter(kind.nodes)))
    )
    nearby = next(iter(nearest.nodes))
    missing = [tag for tag in demand.tags if tag not in nearest.tags]
    tags = f"the tag{'s' if len(demand.tags) > 1 else ''} {', '.join(demand.tags)}"
    if len(missing) == len(demand.tags):
        tagged = sorted({t for k in kinds for r in k.nodes.values() for t in r.server.info.tags})
        have = f"have the tags {listing(tagged)}" if tagged else "have no tags"
        return f"no server has {tags}; those that serve {spec.model_path} {have}"
    return f"no server has {tags}; the nearest, {nearby}, lacks {', '.join(missing)}"


def _no_devices(demand: ServerDemand, kinds: list[NodeKind]) -> str:
    largest = max(kind.devices for kind in kinds)
    silent = sum(len(kind.nodes) for kind in kinds if not kind.devices)
    tagged = f" with the tags {', '.join(demand.tags)}" if demand.tags else ""
    reason = f"needs {count(demand.devices, 'device')} in one slice; "
    if not largest:
        return f"{reason}no server{tagged} reports how many it has"
    reason += f"the largest free server{tagged} has {largest}"
    return f"{reason}; {count(silent, 'server')} did not report theirs" if silent else reason


def _too_small(demand: ServerDemand, need: Need, kinds: list[NodeKind]) -> str:
    """No server has the devices that a server which refused the model reported as needed."""
    servers = [node.server.info for kind in kinds for node in kind.nodes.values()]
    largest = max(servers, key=lambda info: (devices_of(info), info.memory_total))
    silent = sum(not devices_of(info) for info in servers)
    tagged = f" with the tags {', '.join(demand.tags)}" if demand.tags else ""
    if not (devices := devices_of(largest)):
        return f"{_needs(need)}; no server{tagged} reports how many devices it has"
    reason = f"{_needs(need)}; the largest server{tagged} has {count(devices, 'device')}"
    if each := largest.memory_total // devices:
        reason += f" with {human_bytes(each, 1)}{' each' if devices > 1 else ''}"
    return f"{reason}; {count(silent, 'server')} did not report theirs" if silent else reason


def _needs(need: Need) -> str:
    if need.devices < 2:
        return f"needs {human_bytes(need.memory, 1)} of memory"
    return (
        f"needs {count(need.devices, 'device')} with {human_bytes(need.memory_each, 1)} each "
        f"({human_bytes(need.memory, 1)} in all)"
    )


def _no_more_servers(spec: ModelSpec, demand: ServerDemand, able: int) -> str:
    one = able == 1
    have = "has" if one else "have"
    verbs = [f"{'serves' if one else 'serve'} {spec.model_path}"]
    verbs += [f"{have} the tags {', '.join(demand.tags)}"] if demand.tags else []
    verbs += [f"{have} {count(demand.devices, 'device')}"] if demand.devices else []
    return (
        f"{spec.replicas} replicas are wanted, one per server, but only "
        f"{able} joined server{'' if one else 's'} {' and '.join(verbs)}"
    )


def _no_memory(spec: ModelSpec, able: list[NodeKind], chosen: Collection[str], needs: Needs) -> str:
    nodes = [(node, kind) for kind in able if (node := kind.roomiest(chosen)) is not None]
    best, kind = max(nodes, key=lambda pair: (pair[0].free, pair[0].address))
    learned = needs.learned(spec) or Need()
    need = max(needs.of(spec, kind.devices) or 0, learned.memory)
    return (
        f"{_needs(replace(learned, memory=need))}; the server with the most free memory, "
        f"{best.address}, has {human_bytes(best.free, 1)} of "
        f"{human_bytes(best.server.info.memory_total, 1)} free{_beside(best)}"
    )


def _beside(node: Node) -> str:
    order = sorted(node.models, key=lambda model_id: (-node.models[model_id], model_id))
    return f" beside {listing(order)}" if order else ""
