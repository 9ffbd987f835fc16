"""Decide, from the leader's beats, whether a cell has a live leader.

Pure, and by the follower's own clock alone: the clocks of two machines need not agree. A wrong
decision only costs a needless change of leader, because the log is the fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from admin_server.storage.series import Position
from sax.types import ServerInfo


class ServerMembership(msgspec.Struct, frozen=True):
    """Servers, with each shared list of model paths stored once."""

    paths: list[tuple[str, ...]]
    servers: list[tuple[ServerInfo, int]]  # without model paths, and their index in `paths`
    sequence: int = 0  # the last record when this was written; 0: by a version that kept none


def encode_membership(infos: Sequence[ServerInfo], sequence: int) -> bytes:
    numbers: dict[tuple[str, ...], int] = {}
    servers = [
        (replace(info, model_paths=()), numbers.setdefault(info.model_paths, len(numbers)))
        for info in infos
    ]
    return msgspec.json.encode(ServerMembership(list(numbers), servers, sequence))


def decode_membership(data: bytes) -> tuple[list[ServerInfo], int]:
    """The servers, and the last record when they were written. Raises msgspec.DecodeError."""
    stored = msgspec.json.decode(data, type=ServerMembership)
    infos = [replace(info, model_paths=stored.paths[number]) for info, number in stored.servers]
    return infos, stored.sequence


class LeaderBeat(msgspec.Struct, frozen=True):
    """A leader's heartbeat, written about once a second."""

    admin: str  # its id
    address: str  # where it listens
    sequence: int  # the last record it wrote
    process: str = ""  # its mark (see process_mark)
    resigned: bool = False  # its last beat: anyone may lead now


@dataclass(frozen=True, slots=True)
class Life:
    """A leader as observed; any change of it is a sign of life."""

    term: int  # of the newest leader in the log
    place: Position | None = None  # of the newest beat
    beat: LeaderBeat | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A follower's observations of the leader, in the follower's own time."""

    patience_s: float  # silence after which the leader counts as gone
    life: Life | None = None  # None: not looked yet
    since_s: float = 0.0  # when `life` was first seen, in unbroken observation
    looked_s: float = 0.0

    def look(self, life: Life, now: float) -> Lease:
        """The lease after a successful look into the store."""
        # After a gap without looks (a store that stalled for us may have stalled for the leader
        # too) nothing is known of what happened meanwhile: start observing anew.
        broken = now - self.looked_s > self.patience_s / 2
        if self.life != life or broken:
            return replace(self, life=life, since_s=now, looked_s=now)
        return replace(self, looked_s=now)

    def vacant(self, now: float) -> bool:
        """True if another server may lead: at once if nobody ever led or the leader resigned."""
        if self.life is None:
            return False
        beat, place = self.life.beat, self.life.place
        if place is None or beat is None:
            # A new leader is in the log before its first beat.
            return self.life.term == 0 or self._silent(now)
        if beat.resigned and place[0] >= self.life.term:
            return True
        return self._silent(now)

    @property
    def leader(self) -> str:
        """Address of the leader, "" if unknown."""
        beat = self.life.beat if self.life else None
        return beat.address if beat is not None and not beat.resigned else ""

    def _silent(self, now: float) -> bool:
        return now - self.since_s >= self.patience_s
