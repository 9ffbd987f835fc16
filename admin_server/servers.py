"""The model servers of a cell as last seen, and what is under way with them.

Plain bookkeeping: told what happened and when, it gives what the planner needs. Knows nothing of
RPCs, clocks, specs or decisions.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from admin_server.report import clock_time
from admin_server.seen import Action, Failure, Load, Place, Seen, SeenServer, Unload
from admin_server.state import CellState
from sax.types import JoinedServer, ServableStatus, ServerInfo, ServerStatus

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 60.0
_UNLOAD_RETRY_S = 5.0
_GONE_KEPT = 3  # servers pruned lately that reasons still tell of


@dataclass(slots=True)
class _UnderWay:
    """An action whose outcome no status has confirmed yet."""

    action: Action
    done_at_s: float | None = None  # a status asked for after this moment knows the outcome


@dataclass(slots=True)
class _Server:
    info: ServerInfo
    last_seen_s: float
    status: ServerStatus | None = None
    trouble: str = ""
    under_way: list[_UnderWay] = field(default_factory=list[_UnderWay])


class Servers:
    """Who has joined, and what each was last seen to hold."""

    def __init__(self, *, silence_s: float, jitter: random.Random) -> None:
        self._silence_s = silence_s
        self._jitter = jitter
        self._servers: dict[str, _Server] = {}
        self._failures: dict[Place, Failure] = {}
        self._gone: deque[tuple[str, str]] = deque(maxlen=_GONE_KEPT)

    def __contains__(self, address: str) -> bool:
        return address in self._servers

    def infos(self) -> tuple[ServerInfo, ...]:
        """What every joined server said of itself, by address."""
        return tuple(self._servers[address].info for address in sorted(self._servers))

    def join(self, info: ServerInfo, now: float) -> bool:
        """Note a join or heartbeat; True if nothing known of the address holds any longer."""
        known = self._servers.get(info.address)
        if known is not None and known.info.incarnation == info.incarnation:
            known.info = info
            return False
        self._forget(info.address)
        self._servers[info.address] = _Server(info, now)
        return True

    def saw(self, address: str, status: ServerStatus, asked_at_s: float, now: float) -> bool:
        """Note an answer to GetStatus; True if it shows that the server was started anew."""
        server = self._servers[address]
        restarted = bool(status.incarnation and server.info.incarnation) and (
            status.incarnation != server.info.incarnation
        )
        if restarted:
            self._forget(address)
            server = _Server(replace(server.info, incarnation=status.incarnation), now)
            self._servers[address] = server
        server.status, server.last_seen_s, server.trouble = status, now, ""
        server.under_way = [
            u for u in server.under_way if u.done_at_s is None or u.done_at_s >= asked_at_s
        ]
        self._note_failures(address, status, now)
        return restarted

    def missed(self, address: str, why: str) -> None:
        """Note that GetStatus failed."""
        if address in self._servers:
            self._servers[address].trouble = why

    def prune(self, now: float) -> list[str]:
        """Forget the servers that were silent for too long, and tell which."""
        silent = [a for a, s in self._servers.items() if now - s.last_seen_s >= self._silence_s]
        for address in silent:
            trouble = self._servers[address].trouble
            why = (
                f"{address} was dropped at {clock_time(now)} after {self._silence_s:g} s of silence"
            )
            self._forget(address)
            self._gone.append((address, f"{why} ({trouble})" if trouble else why))
        return silent

    def begin(self, action: Action) -> None:
        """Note that an action's RPC is on its way."""
        self._servers[action.address].under_way.append(_UnderWay(action))
        place = (action.address, action.model_id)
        if isinstance(action, Load) and place in self._failures:
            self._failures[place] = replace(self._failures[place], retrying=True)

    def finish(self, action: Action, error: str | None, now: float) -> None:
        """Note that the RPC ended; what it did counts until a status asked for later comes in."""
        server = self._servers.get(action.address)
        for under_way in server.under_way if server else ():
            if under_way.action is action:
                # An unload that failed is left alone for a while, then tried again.
                pause = _UNLOAD_RETRY_S if error and isinstance(action, Unload) else 0.0
                under_way.done_at_s = now + pause
                if error is not None and isinstance(action, Load):
                    self._fail((action.address, action.model_id), action.spec.version, error, now)

    def forget_failures(self, wanted: CellState) -> None:
        """Drop what is known of failed loads that nobody wants any more."""
        self._failures = {
            (address, model_id): failure
            for (address, model_id), failure in self._failures.items()
            if model_id in wanted.models
            and failure.version in ("", wanted.models[model_id].version)
        }

    def view(self) -> Seen:
        """All of it, for the planner."""
        return Seen(
            servers={address: _seen(server) for address, server in self._servers.items()},
            pending=self._pending(),
            failures=dict(self._failures),
            gone=tuple(why for address, why in self._gone if address not in self._servers),
        )

    def _pending(self) -> Mapping[Place, tuple[Action, ...]]:
        pending: dict[Place, tuple[Action, ...]] = {}
        for server in self._servers.values():
            for action in (under_way.action for under_way in server.under_way):
                place = (action.address, action.model_id)
                pending[place] = (*pending.get(place, ()), action)
        return pending

    def _note_failures(self, address: str, status: ServerStatus, now: float) -> None:
        for servable in status.servables:
            place = (address, servable.model_id)
            if servable.status is ServableStatus.LOADED:
                self._failures.pop(place, None)
            elif servable.status is ServableStatus.FAILED and not self._is_busy(place):
                self._fail(place, servable.version, servable.reason, now)

    def _is_busy(self, place: Place) -> bool:
        address, model_id = place
        under_way = self._servers[address].under_way
        return any(u.action.model_id == model_id for u in under_way)

    def _fail(self, place: Place, version: str, reason: str, now: float) -> None:
        """Count a failure once, however often it is seen before the next try."""
        known = self._failures.get(place)
        if known is not None and known.version == version and not known.retrying:
            return
        count = 1 + sum(
            failure.count
            for (_, model_id), failure in self._failures.items()
            if model_id == place[1] and failure.version == version
        )
        delay = backoff_s(count, self._jitter.uniform(0.8, 1.2))
        self._failures[place] = Failure(version, count, reason, now + delay)

    def _forget(self, address: str) -> None:
        self._servers.pop(address, None)
        for place in [place for place in self._failures if place[0] == address]:
            del self._failures[place]


def backoff_s(count: int, jitter: float) -> float:
    """How long to wait after the count-th failure of a load."""
    return min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2 ** min(count - 1, 16)) * jitter


def known_paths(infos: Iterable[ServerInfo]) -> list[str]:
    """Every model path that some server serves."""
    return sorted({path for info in infos for path in info.model_paths})


def _seen(server: _Server) -> SeenServer:
    info, status = server.info, server.status or ServerStatus(())
    return SeenServer(
        JoinedServer(
            info=replace(info, memory_total=status.memory_total or info.memory_total),
            last_seen_s=server.last_seen_s,
            servables=status.servables,
            memory_used=status.memory_used,
            dormant=status.dormant,
            traffic=status.traffic,
        ),
        answered=server.status is not None,
        trouble=server.trouble,
    )
