"""Bookkeeping of a cell's model servers: what each was last seen to hold, and actions under way.

Each server's last status is converted once, not on every view.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from admin_server.assignment.failures import AclPushes, Failures
from admin_server.assignment.seen import (
    AclPush,
    Action,
    Failure,
    LoadAction,
    Place,
    Seen,
    SeenModel,
    SeenServer,
    UnloadAction,
    UpdateAcls,
    by_model,
)
from admin_server.ledger.state import CellState
from sax.format import clock_time
from sax.need import Need
from sax.types import JoinedServer, ServableInfo, ServableStatus, ServerInfo, ServerStatus

# Index by model of what servers hold, updated as servers answer.
#
# A model that did not change is the very same object in every view, so the planner can skip it
# cheaply. How busy a server is does not count as a change.


class ModelIndex:
    def __init__(self) -> None:
        self._by_address: dict[str, dict[str, ServableInfo]] = {}
        self._held: dict[str, dict[str, ServableInfo]] = {}  # same, by model
        self._changed: set[str] = set()  # models changed since the last view
        self._busy: set[str] = set()  # models with actions, failures or pushes in that view
        self._models: dict[str, SeenModel] = {}

    def put(self, address: str, servables: Iterable[ServableInfo]) -> bool:
        """Record what the server holds now; True if a plan may come out differently."""
        before = self._by_address.setdefault(address, {})
        after: dict[str, ServableInfo] = {}
        for servable in servables:
            if servable.status is not ServableStatus.NONE:
                after.setdefault(servable.model_id, servable)
        news = [
            model_id
            for model_id, servable in after.items()
            if (old := before.get(model_id)) is None or _differ(old, servable)
        ]
        for model_id in news:
            before[model_id] = after[model_id]
            self._held.setdefault(model_id, {})[address] = after[model_id]
        gone = [model_id for model_id in before if model_id not in after]
        for model_id in gone:
            del before[model_id]
            del self._held[model_id][address]
        self._changed.update(news, gone)
        return bool(news or gone)

    def touch(self, address: str) -> None:
        """The server itself changed: reconsider the models it holds."""
        self._changed.update(self._by_address.get(address, ()))

    def drop(self, address: str) -> None:
        self.put(address, ())
        del self._by_address[address]

    def view(
        self,
        pending: Mapping[Place, tuple[Action, ...]],
        failures: Mapping[Place, Failure],
        pushes: Mapping[Place, AclPush],
    ) -> Mapping[str, SeenModel]:
        busy = by_model({}, pending, failures, pushes)
        for model_id in self._changed | self._busy | busy.keys():
            held = self._held.get(model_id)
            model = busy.get(model_id) or SeenModel()
            if held:
                model.held.update(held)
            elif model_id in self._held:
                del self._held[model_id]
            if held or model_id in busy:
                self._models[model_id] = model
            else:
                self._models.pop(model_id, None)
        self._changed, self._busy = set(), set(busy)
        return dict(self._models)


def _differ(one: ServableInfo, other: ServableInfo) -> bool:
    """Compare everything except how busy the servable is."""
    return (
        one.status is not other.status
        or one.version != other.version
        or one.memory != other.memory
        or one.reason != other.reason
        or one.progress != other.progress
        or one.methods != other.methods
        or one.acls != other.acls
        or one.note != other.note
    )


_UNLOAD_RETRY_S = 5.0
_GONE_KEPT = 3  # servers dropped lately that reasons still mention
_LEFT_KEPT = 1000  # starts of servers whose late heartbeats are ignored


@dataclass(slots=True)
class _UnderWay:
    """An action whose outcome no status has confirmed yet."""

    action: Action
    done_at_s: float | None = None

    def is_known(self, asked_at_s: float) -> bool:
        """True if a status requested at this time reflects the outcome."""
        return self.done_at_s is not None and self.done_at_s < asked_at_s


@dataclass(slots=True)
class _ServerRecord:
    info: ServerInfo
    last_seen_s: float
    may_hold: frozenset[str] = frozenset()  # until it has answered
    status: ServerStatus | None = None
    trouble: str = ""
    under_way: list[_UnderWay] = field(default_factory=list[_UnderWay])
    seen: SeenServer | None = None  # cached view of the above; None: outdated

    @property
    def is_idle(self) -> bool:
        """True if it is known to hold nothing, and nothing is under way there."""
        servables = () if self.status is None else self.status.servables
        holds = any(servable.status is not ServableStatus.NONE for servable in servables)
        return not (holds or self.under_way or (self.status is None and self.may_hold))


class Servers:
    def __init__(self, *, silence_s: float, jitter: random.Random) -> None:
        self._silence_s = silence_s
        self._servers: dict[str, _ServerRecord] = {}
        self._failures = Failures(jitter)
        self._pushes = AclPushes(jitter)
        self._index = ModelIndex()
        self._gone: deque[tuple[str, str]] = deque(maxlen=_GONE_KEPT)
        self._left: dict[tuple[str, str], None] = {}  # address and incarnation, oldest first
        self._paths: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.changes = 0  # grows whenever a plan may come out differently

    def __contains__(self, address: str) -> bool:
        return address in self._servers

    def infos(self) -> tuple[ServerInfo, ...]:
        """Every joined server's own description, by address."""
        return tuple(self._servers[address].info for address in sorted(self._servers))

    def restore(self, infos: Iterable[ServerInfo], models: Iterable[str], now: float) -> None:
        """Take over from an admin server that knew these servers and had these models published.

        Until a server answers or has been silent for too long, it may hold any of the models.
        """
        may_hold = frozenset(models)
        for info in infos:
            if info.address not in self._servers:
                self._servers[info.address] = _ServerRecord(self._sharing(info), now, may_hold)
        self.changes += 1

    def knows(self, info: ServerInfo) -> bool:
        """True if this start of the server has joined."""
        known = self._servers.get(info.address)
        return known is not None and known.info.incarnation == info.incarnation

    def join(self, info: ServerInfo, now: float) -> bool:
        """Record a join or heartbeat; True if everything known of the address is void."""
        info = self._sharing(info)
        known = self._servers.get(info.address)
        if known is not None and known.info.incarnation == info.incarnation:
            if known.info != info:
                known.info, known.seen = info, None
                self._index.touch(info.address)
                self.changes += 1
            return False
        self._forget(info.address)
        self._servers[info.address] = _ServerRecord(info, now)
        self.changes += 1
        return True

    def saw(self, address: str, status: ServerStatus, asked_at_s: float, now: float) -> bool:
        """Record a GetStatus answer; True if it shows that the server was restarted."""
        server = self._servers[address]
        restarted = bool(status.incarnation and server.info.incarnation) and (
            status.incarnation != server.info.incarnation
        )
        if restarted:
            self._forget(address)
            server = _ServerRecord(replace(server.info, incarnation=status.incarnation), now)
            self._servers[address] = server
        old, server.status = server.status, status
        changed = old is None or old.memory_total != status.memory_total
        changed = self._index.put(address, status.servables) or changed
        under_way = [u for u in server.under_way if not u.is_known(asked_at_s)]
        if changed or server.trouble or len(under_way) != len(server.under_way):
            self.changes += 1
        server.last_seen_s, server.trouble = now, ""
        server.under_way, server.seen = under_way, None
        self._note(address, status, now)
        return restarted

    def missed(self, address: str, why: str) -> None:
        """Record a failed GetStatus."""
        server = self._servers.get(address)
        if server is not None and server.trouble != why:
            server.trouble, server.seen = why, None
            self.changes += 1

    def prune(self, now: float) -> list[str]:
        """Drop servers that were silent too long; returns their addresses."""
        silent = [a for a, s in self._servers.items() if now - s.last_seen_s >= self._silence_s]
        for address in silent:
            self._forget(address)
            # Its address may be another machine's by now: the log and the events have it.
            silence = f"after {self._silence_s:g} s of silence"
            self._gone.append((address, f"a server was dropped at {clock_time(now)} {silence}"))
        return silent

    def leave(self, address: str, incarnation: str, now: float) -> bool:
        """Drop a server that shuts down; False if this start of it is not joined."""
        server = self._servers.get(address)
        if server is None or server.info.incarnation != incarnation:
            return False
        if len(self._left) >= _LEFT_KEPT:
            del self._left[next(iter(self._left))]
        self._left[address, incarnation] = None
        self._forget(address)
        self._gone.append((address, f"a server began to shut down at {clock_time(now)}"))
        return True

    def drop_idle(self, tags: frozenset[str], now: float) -> list[str]:
        """Drop servers with one of these tags that hold nothing; returns their addresses."""
        if not tags:
            return []
        dropped = [a for a, s in self._servers.items() if s.is_idle and tags & {*s.info.tags}]
        for address in dropped:
            self._forget(address)
            why = f"a server was dropped at {clock_time(now)} with its machines"
            self._gone.append((address, why))
        return dropped

    def has_left(self, address: str, incarnation: str) -> bool:
        return (address, incarnation) in self._left

    def begin(self, action: Action) -> None:
        self._servers[action.address].under_way.append(_UnderWay(action))
        if isinstance(action, LoadAction):
            self._failures.retry((action.address, action.model_id))

    def finish(
        self,
        action: Action,
        error: str | None,
        now: float,
        need: Need | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        """Record that the RPC ended; its effect counts until a status requested later arrives."""
        server = self._servers.get(action.address)
        place = (action.address, action.model_id)
        for under_way in server.under_way if server else ():
            if under_way.action is action:
                # A failed unload is retried after a pause.
                pause = _UNLOAD_RETRY_S if error and isinstance(action, UnloadAction) else 0.0
                under_way.done_at_s = now + pause
                if error is not None and isinstance(action, LoadAction):
                    version = action.spec.version
                    self._failures.fail(place, version, error, now, need, lasting=lasting)
                if isinstance(action, UpdateAcls):
                    self._pushes.sent(place, action.spec.acls, error, now)
        self.changes += 1

    def forget_failures(self, wanted: CellState) -> None:
        self._failures.keep_wanted(wanted)

    def view(self) -> Seen:
        pending, failures, pushes = self._pending(), self._failures.all(), self._pushes.all()
        return Seen(
            servers={address: _seen(server) for address, server in self._servers.items()},
            pending=pending,
            failures=failures,
            gone=tuple(
                dict.fromkeys(why for address, why in self._gone if address not in self._servers)
            ),
            pushes=pushes,
            needs=self._failures.needs(),
            indexed=self._index.view(pending, failures, pushes),
        )

    def _pending(self) -> Mapping[Place, tuple[Action, ...]]:
        pending: dict[Place, tuple[Action, ...]] = {}
        for server in self._servers.values():
            for action in (under_way.action for under_way in server.under_way):
                place = (action.address, action.model_id)
                pending[place] = (*pending.get(place, ()), action)
        return pending

    def _note(self, address: str, status: ServerStatus, now: float) -> None:
        """Record failed and successful loads, and ACLs in force."""
        loaded: dict[str, Mapping[str, str]] = {}
        for servable in status.servables:
            place = (address, servable.model_id)
            if servable.status is ServableStatus.LOADED:
                self._failures.heal(place)
                loaded[servable.model_id] = servable.acls
            elif servable.status is ServableStatus.FAILED and not self._is_busy(place):
                version, reason = servable.version, servable.reason
                self._failures.fail(place, version, reason, now, servable.need)
        self._pushes.reported(address, loaded)

    def _is_busy(self, place: Place) -> bool:
        address, model_id = place
        under_way = self._servers[address].under_way
        return any(u.action.model_id == model_id for u in under_way)

    def _sharing(self, info: ServerInfo) -> ServerInfo:
        """Reuse the path tuple of another server: paths are many, and mostly the same."""
        if len(self._paths) > len(self._servers) + 1:
            self._paths = {s.info.model_paths: s.info.model_paths for s in self._servers.values()}
        paths = self._paths.setdefault(info.model_paths, info.model_paths)
        return info if paths is info.model_paths else replace(info, model_paths=paths)

    def _forget(self, address: str) -> None:
        if self._servers.pop(address, None) is not None:
            self._index.drop(address)
            self.changes += 1
        self._failures.forget(address)
        self._pushes.forget(address)


def known_paths(infos: Iterable[ServerInfo]) -> list[str]:
    # Deduplicate tuples first: a thousand servers share a few.
    return sorted(set(chain.from_iterable({info.model_paths for info in infos})))


def _seen(server: _ServerRecord) -> SeenServer:
    if server.seen is None:
        info, status = server.info, server.status or ServerStatus(())
        if status.memory_total and status.memory_total != info.memory_total:
            info = replace(info, memory_total=status.memory_total)
        joined = JoinedServer(
            info=info,
            last_seen_s=server.last_seen_s,
            servables=status.servables,
            memory_used=status.memory_used,
            dormant=status.dormant,
            traffic=status.traffic,
        )
        server.seen = SeenServer(
            joined,
            answered=server.status is not None,
            trouble=server.trouble,
            may_hold=server.may_hold if server.status is None else frozenset(),
        )
    return server.seen
