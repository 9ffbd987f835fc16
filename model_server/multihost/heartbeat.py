"""Heartbeat bookkeeping: decide which hosts of a replica are alive.

A host is lost when it is silent for too long, or when it answers but performs no command for much
longer. Pure; callers pass the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

STALL_S = 120.0  # ample for the first run of a large program on a slow machine


@dataclass(slots=True)
class _Host:
    heard_at_s: float
    done: int = 0  # last command it performed
    moved_at_s: float = 0.0  # when `done` last grew or the host was idle


class Heartbeat:
    """The hosts that one host watches: all for the primary, the primary for a secondary."""

    def __init__(self, hosts: Iterable[int], timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._hosts = {ordinal: _Host(now_s, 0, now_s) for ordinal in hosts}

    def heard(self, ordinal: int, done: int, now_s: float) -> None:
        """Record a sign of life; the host has performed the commands up to `done`."""
        host = self._hosts[ordinal]
        host.heard_at_s = now_s
        if done > host.done:
            host.done, host.moved_at_s = done, now_s

    @property
    def done(self) -> int:
        """Number of the last command that every host has performed."""
        return min((host.done for host in self._hosts.values()), default=0)

    def behind(self, published: int) -> list[int]:
        """Return the hosts that have not performed every command."""
        return [ordinal for ordinal, host in self._hosts.items() if host.done < published]

    def lost(self, published: int, now_s: float) -> tuple[int, str] | None:
        """Return a lost host and the reason; if there are several, the one silent longest."""
        ordinal = min(self._hosts, key=lambda each: self._hosts[each].heard_at_s, default=None)
        if ordinal is not None:
            silence_s = now_s - self._hosts[ordinal].heard_at_s
            if silence_s > self._timeout_s:
                return ordinal, f"no heartbeat for {silence_s:.1f} s"
        for ordinal, host in self._hosts.items():
            if host.done >= published:
                host.moved_at_s = now_s
            elif now_s - host.moved_at_s > STALL_S:
                return ordinal, (
                    f"it answers but has not performed command {host.done + 1} for {STALL_S:.0f} s"
                )
        return None
