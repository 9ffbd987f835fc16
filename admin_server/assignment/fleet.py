"""The servers of a cell while models are being placed on them.

Servers that no demand can tell apart are of one kind, and each kind keeps its servers sorted, so
finding the best server for a replica means looking at a few of them, never at all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from admin_server.ledger.placement import ServerDemand, bare, devices_of, reserved_for, stated_bytes
from sax.need import Need
from sax.types import JoinedServer, ModelSpec, ServableStatus

_Key = tuple[int, int, str]
_KindKey = tuple[frozenset[str], frozenset[str], int, bool, frozenset[str]]


@dataclass(slots=True, eq=False)
class Node:
    """One server. No reference to its kind: the garbage collector would get a cycle per node."""

    server: JoinedServer
    tells_memory: bool
    free: int  # bytes; 0 if its memory is unknown
    models: dict[str, int] = field(default_factory=dict[str, int])  # bytes each; 0: unknown

    @property
    def address(self) -> str:
        return self.server.info.address

    def fits(self, need: int | None) -> bool:
        """True if the need fits, as far as both are known."""
        return need is None or not self.tells_memory or need <= self.free

    def has_loaded(self, model_id: str) -> bool:
        return self.loaded_bytes(model_id) is not None

    def loaded_bytes(self, model_id: str) -> int | None:
        """Bytes the model takes now, in any version; None: not loaded."""
        for servable in self.server.servables:
            if servable.model_id == model_id:
                return servable.memory if servable.status is ServableStatus.LOADED else None
        return None


@dataclass(slots=True, eq=False)
class NodeKind:
    """Servers that every demand of this round treats alike."""

    paths: frozenset[str]  # bare; only those named by some demand
    tags: frozenset[str]  # only those named by some demand
    devices: int  # 0: unknown
    tells_memory: bool
    reserved: frozenset[str] = frozenset()  # the only models allowed; empty: any
    nodes: dict[str, Node] = field(default_factory=dict[str, "Node"])  # by address
    looks: int = 0  # servers examined: the cost of a round
    # Sorted on first use: a round that places nothing sorts nothing.
    _emptiest: list[_Key] | None = None
    _tightest: list[_Key] | None = None

    def best(
        self, need: int | None, taken: Collection[str]
    ) -> tuple[tuple[int, int, int, str], Node] | None:
        """The best server except those taken, and its rank for comparison with other kinds.

        If bytes are known it is the tightest fit, so that large free blocks stay whole for models
        that need them. Otherwise it is the server with the fewest models.
        """
        if need is not None and self.tells_memory:
            if self._tightest is None:
                self._tightest = sorted(map(_by_free, self.nodes.values()))
            first = bisect_left(self._tightest, (need,))
            free, models, address = self._first(self._tightest, first, taken)
            return ((0, free - need, models, address), self.nodes[address]) if address else None
        if self._emptiest is None:
            self._emptiest = sorted(map(_by_models, self.nodes.values()))
        models, minus_free, address = self._first(self._emptiest, 0, taken)
        return ((1, models, minus_free, address), self.nodes[address]) if address else None

    def roomiest(self, taken: Collection[str]) -> Node | None:
        if self._tightest is None:
            self._tightest = sorted(map(_by_free, self.nodes.values()))
        for _, _, address in reversed(self._tightest):
            self.looks += 1
            if address not in taken:
                return self.nodes[address]
        return None

    def give(self, node: Node, model_id: str, need: int | None) -> None:
        """Place a replica on one of its servers."""
        if self._tightest is not None:
            del self._tightest[bisect_left(self._tightest, _by_free(node))]
        if self._emptiest is not None:
            del self._emptiest[bisect_left(self._emptiest, _by_models(node))]
        node.models[model_id] = need or 0
        if self.tells_memory:
            node.free -= need or 0
        if self._tightest is not None:
            insort(self._tightest, _by_free(node))
        if self._emptiest is not None:
            insort(self._emptiest, _by_models(node))

    def _first(self, order: list[_Key], start: int, taken: Collection[str]) -> _Key:
        for index in range(start, len(order)):
            self.looks += 1
            if order[index][2] not in taken:
                return order[index]
        return (0, 0, "")


def _by_free(node: Node) -> _Key:
    return (node.free, len(node.models), node.address)


def _by_models(node: Node) -> _Key:
    return (len(node.models), -node.free, node.address)


class Fleet:
    """All servers by address, and by kind for the demands of a round."""

    def __init__(self, servers: Iterable[JoinedServer], demands: Iterable[ServerDemand]) -> None:
        demands = set(demands)
        self._kinds = _NodeKinds(
            {d.path for d in demands}, {tag for d in demands for tag in d.tags}
        )
        self.nodes: dict[str, Node] = {}
        self.kind_at: dict[str, NodeKind] = {}
        for server in sorted(servers, key=lambda server: server.info.address):
            kind = self._kinds.of(server)
            node = Node(server, kind.tells_memory, server.info.memory_total)
            self.nodes[node.address] = kind.nodes[node.address] = node
            self.kind_at[node.address] = kind
        self._able: dict[ServerDemand, list[NodeKind]] = {}
        self._addresses: dict[ServerDemand, list[str]] = {}
        self._open: list[NodeKind] | None = None

    @property
    def kinds(self) -> Sequence[NodeKind]:
        """All kinds, ordered by their first address."""
        return list(self._kinds.by_key.values())

    @cached_property
    def paths(self) -> frozenset[str]:
        """Every model path that some server serves, as the server spells it."""
        return frozenset(chain.from_iterable(self._kinds.known_paths))

    def is_served(self, path: str) -> bool:
        """True if any server serves the bare path, reserved or not."""
        return path in self._kinds.some_serve

    @property
    def looks(self) -> int:
        return sum(kind.looks for kind in self._kinds.by_key.values())

    @property
    def most_devices(self) -> int:
        return max((kind.devices for kind in self.kinds), default=0)

    def open_to(self, model_id: str) -> Sequence[NodeKind]:
        if self._open is None:
            self._open = [kind for kind in self.kinds if not kind.reserved]
        return [*self._open, *self._kinds.reserved.get(model_id, ())]

    def able(self, demand: ServerDemand) -> list[NodeKind]:
        demand = self._shared(demand)
        if demand not in self._able:
            self._able[demand] = [
                kind
                for kind in self._kinds.with_path(demand.path, demand.model_id)
                if demand.met_by(kind.paths, kind.tags, kind.devices)
            ]
        return self._able[demand]

    def addresses(self, demand: ServerDemand) -> Sequence[str]:
        """The servers that satisfy a demand, sorted."""
        demand = self._shared(demand)
        if demand not in self._addresses:
            self._addresses[demand] = sorted(a for kind in self.able(demand) for a in kind.nodes)
        return self._addresses[demand]

    def _shared(self, demand: ServerDemand) -> ServerDemand:
        """Demands that differ only in the model share results, unless servers are reserved."""
        if demand.model_id in self._kinds.reserved:
            return demand
        return ServerDemand(demand.path, demand.tags, demand.devices)


class _NodeKinds:
    """The kinds of a round, created as servers are added."""

    def __init__(self, paths: set[str], tags: set[str]) -> None:
        self._wanted_paths = paths
        self._wanted_tags = tags
        self.known_paths: dict[tuple[str, ...], frozenset[str]] = {}  # most servers share theirs
        self.by_key: dict[_KindKey, NodeKind] = {}
        self.reserved: dict[str, list[NodeKind]] = {}  # by model
        self.some_serve: set[str] = set()  # bare paths, reserved or not
        self._by_path: dict[str, list[NodeKind]] = {}

    def of(self, server: JoinedServer) -> NodeKind:
        info = server.info
        paths = self.known_paths.get(info.model_paths)
        if paths is None:
            paths = self._wanted_paths.intersection(map(bare, info.model_paths))
            paths = self.known_paths[info.model_paths] = frozenset(paths)
        tags = frozenset(self._wanted_tags.intersection(info.tags))
        reserved = reserved_for(info.tags)
        key = (paths, tags, devices_of(info), bool(info.memory_total), reserved)
        kind = self.by_key.get(key)
        if kind is None:
            kind = self.by_key[key] = NodeKind(*key)
            self.some_serve |= paths
            for model_id in reserved:
                self.reserved.setdefault(model_id, []).append(kind)
            for path in () if reserved else paths:
                self._by_path.setdefault(path, []).append(kind)
        return kind

    def with_path(self, path: str, model_id: str) -> Iterator[NodeKind]:
        yield from self._by_path.get(path, ())
        yield from (kind for kind in self.reserved.get(model_id, ()) if path in kind.paths)


class Needs:
    """Bytes each model takes.

    As reported by servers that loaded it, otherwise as stated by the operator, but no less than its
    weights as reported by servers that had too little memory.
    """

    def __init__(
        self,
        reported: Mapping[str, int],
        learned: Mapping[str, Need] | None = None,
        least: Mapping[str, int] | None = None,
    ) -> None:
        self._reported = reported  # by model; 0 or absent: not reported
        self._learned = learned or {}
        self._least = least or {}  # by model; 0 or absent: as reported

    def learned(self, spec: ModelSpec) -> Need | None:
        return self._learned.get(spec.model_id)

    def of(self, spec: ModelSpec, devices: int) -> int | None:
        """Bytes of this version on a server with this many devices; None: unknown."""
        if reported := self._least.get(spec.model_id) or self._reported.get(spec.model_id):
            return reported
        learned = self._learned.get(spec.model_id)
        least = learned.weights if learned is not None else 0
        return max(stated_bytes(spec, devices) or 0, least) or None

    def of_loaded(self, spec: ModelSpec, node: Node, devices: int) -> int | None:
        """Bytes of the copy that a server has loaded, in any version."""
        if spec.model_id in self._learned and (loaded := node.loaded_bytes(spec.model_id)):
            return loaded
        return self._reported.get(spec.model_id) or stated_bytes(spec, devices)
