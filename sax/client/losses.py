"""How the loss of a replica is noticed, and its kinds, as a request's retry budget tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sax.errors import ReplicaLost, Retry, SaxError, Unauthenticated, meaning


class ReplicaSilent(ReplicaLost):
    """The connection to a replica lives, but nobody there sends anything."""


class ReplicaDied(ReplicaLost):
    """The connection to a replica broke while the request waited there for a part of its answer."""

    alone = False  # others were there, and all had had a part of theirs


class ReplicaUnreachable(ReplicaLost):
    """There was no connection: the replica never saw the request."""


# Silence is counted in looks, not seconds: a client that was itself held up makes one look for all
# of that time, and reads what came meanwhile before it makes the next.

SILENCE_S = 4.4  # so that it is noticed within 5 s, though a message may come just after a look
_LOOKS = 11  # in that time


class Pulse:
    """Watches one token stream while it owes answers.

    The reader of the stream sets `heard` with every message. Servers older than beats may be silent
    for as long as a prefill takes, so silence means nothing until the server has sent a beat.
    """

    __slots__ = ("_ask", "_look_s", "_on_silence", "_owes", "_silent", "_timer", "beats", "heard")

    def __init__(
        self,
        owes: Callable[[], object],
        ask: Callable[[bool], None],
        on_silence: Callable[[], None],
        silence_s: float = SILENCE_S,
    ) -> None:
        """`owes` is true while requests are open; `ask` switches the server's beats on and off."""
        self._owes = owes
        self._ask = ask
        self._on_silence = on_silence
        self._look_s = silence_s / _LOOKS
        self._silent = 0  # looks that found nothing new
        self._timer: asyncio.TimerHandle | None = None
        self.heard = False
        self.beats = False  # True once this server has sent a beat

    def watch(self) -> None:
        """Begin to watch, unless watching already: a request was sent."""
        if self._timer is None:
            self._silent = 0
            self._ask(True)
            self._look_later()

    def stop(self) -> None:
        """The stream ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._look_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._silent = 0 if self.heard else self._silent + 1
        self.heard = False
        if not self._owes():
            self._ask(False)
        elif self.beats and self._silent >= _LOOKS:
            self._on_silence()
        else:
            self._look_later()


_NO_CONNECTION = "failed to connect"  # in gRPC's own words
_FROZEN = "ping timeout"  # in its words, too: a machine that hangs or is cut off


_SUSPECT_S = 5.0  # after a break, other replicas are preferred for this long


class Breaks:
    """The breaks of one connection, the last of them the end of its server maybe."""

    def __init__(self) -> None:
        self._broke_at = self._died_at = float("-inf")
        self._only_one_waited = False  # when the server died

    @property
    def broke_lately(self) -> bool:
        return asyncio.get_running_loop().time() - self._broke_at < _SUSPECT_S

    def note(self) -> None:
        self._broke_at = asyncio.get_running_loop().time()

    def death(self, error: SaxError, heard: int, waiting: int) -> ReplicaDied:
        """Return the error of a request that waited for a part of its answer, as `waiting` did;
        `heard` others had had a part of theirs."""
        now = asyncio.get_running_loop().time()
        if now - self._died_at > _SUSPECT_S:  # the first of all that end with the server
            self._only_one_waited = waiting == 1 and heard > 0
            self._died_at = now
        died = ReplicaDied(error.text)
        died.alone = self._only_one_waited
        return died


def is_death(error: SaxError) -> bool:
    """Return True if the connection was closed, as the system does when a process ends."""
    return type(error) is ReplicaLost and not (
        _NO_CONNECTION in error.text or _FROZEN in error.text
    )


def end_of_stream(error: SaxError, details: str) -> SaxError:
    """Map a stream error to a lost replica: the stream itself carries no single request.

    Unauthenticated stays: every other replica would refuse this opener too. details: gRPC's.
    """
    kept = isinstance(error, Unauthenticated) or meaning(error).retry is Retry.LOCATOR
    lost = error if kept else ReplicaLost(error.text)
    if _NO_CONNECTION in details and isinstance(lost, ReplicaLost):
        return ReplicaUnreachable(lost.text)
    # gRPC noticed the silence before the pulse did
    return ReplicaSilent(lost.text) if _FROZEN in details else lost
