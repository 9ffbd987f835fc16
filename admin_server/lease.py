"""Whether a cell has a living leader, judged by a follower from the leader's beats.

Pure, and by the follower's own clock alone: two machines need not agree on the time. A wrong
judgement costs a needless change of leaders and nothing else, because the log is the fence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from admin_server.series import Position


class Beat(msgspec.Struct, frozen=True):
    """What a leader says about once a second."""

    admin: str  # its id
    address: str  # where it listens
    sequence: int  # the last record it wrote
    process: str = ""  # its mark (see process_mark)
    resigned: bool = False  # its last word: anyone may lead now


@dataclass(frozen=True, slots=True)
class Life:
    """What a leader is seen by; any change of it is a sign of life."""

    term: int  # of the newest leader in the log
    place: Position | None = None  # of the newest beat
    beat: Beat | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """What a follower has seen of the leader, in its own seconds."""

    patience_s: float  # without a sign of life
    life: Life | None = None  # None: never looked
    since_s: float = 0.0  # when it was first seen like this, in an unbroken watch
    looked_s: float = 0.0

    def look(self, life: Life, now: float) -> Lease:
        """After a successful look into the store."""
        # Who could not look for a while (a store that stalled for us may have stalled for the
        # leader too) knows nothing of what happened meanwhile, and starts to watch anew.
        broken = now - self.looked_s > self.patience_s / 2
        if self.life != life or broken:
            return replace(self, life=life, since_s=now, looked_s=now)
        return replace(self, looked_s=now)

    def vacant(self, now: float) -> bool:
        """May somebody else lead? At once where nobody ever did or the leader resigned."""
        if self.life is None:
            return False
        beat, place = self.life.beat, self.life.place
        if place is None or beat is None:
            # A leader that has not beaten yet is in the log already.
            return self.life.term == 0 or self._silent(now)
        if beat.resigned and place[0] >= self.life.term:
            return True
        return self._silent(now)

    @property
    def leader(self) -> str:
        """Where the leader listens, "" if that is not known."""
        beat = self.life.beat if self.life else None
        return beat.address if beat is not None and not beat.resigned else ""

    def _silent(self, now: float) -> bool:
        return now - self.since_s >= self.patience_s
