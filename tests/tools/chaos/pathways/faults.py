"""Faults, and the order in which a seed deals them: every role, way and moment equally often."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Literal, NamedTuple

ROLES = ("manager", "worker", "proxy", "client")
WAYS = ("kill", "stop")
IDLE = "idle"
MOMENTS = (IDLE, "compile", "first execute", "copy", "put", "fetch")

Loss = Literal["no", "maybe", "yes"]
# Seconds that each role is stopped for; of a worker: within its lease of 2 s, about it, beyond it.
_STOPS: dict[str, tuple[tuple[float, float], ...]] = {
    "manager": ((0.3, 1.5), (2.5, 5.0)),
    "proxy": ((0.3, 1.5), (2.5, 6.0)),
    "worker": ((0.2, 0.9), (1.5, 2.7), (3.0, 5.0), (3.0, 5.0)),
    "client": ((0.3, 1.5), (5.5, 7.0)),
}
_SHORT_S, _LONG_S = 1.0, 2.9  # of a worker: surely within its lease, surely beyond it


class Fault(NamedTuple):
    """One blow."""

    role: str
    how: str
    moment: str
    island: int  # of the worker that is hit, and of what the client does meanwhile
    pause_s: float  # it is dead or stopped

    @property
    def victim(self) -> str:
        return f"worker {self.island}" if self.role == "worker" else self.role

    @property
    def loses(self) -> Loss:
        """Tell whether arrays of the island that is hit, or of the client, are lost."""
        if self.role == "manager":
            return "no"
        if self.how == "kill":
            return "yes"
        if self.role == "worker":
            return _between(self.pause_s, _SHORT_S, _LONG_S)
        return "maybe" if self.role == "client" and self.pause_s > 2.0 else "no"

    def cuts(self, *, own: bool) -> bool:
        """Tell whether a client may lose its connection. own: it is the one that is aimed at."""
        if self.role == "proxy":
            return self.how == "kill"
        return self.role == "client" and self.loses != "no" and own


def _between(pause_s: float, short_s: float, long_s: float) -> Loss:
    if pause_s < short_s:
        return "no"
    return "yes" if pause_s > long_s else "maybe"


def deal(luck: random.Random, islands: int) -> Iterator[Fault]:
    """Yield faults for ever, pack after pack."""
    while True:
        pack = list(itertools.product(ROLES, WAYS, MOMENTS))
        luck.shuffle(pack)
        for role, how, moment in pack:
            spans = _STOPS[role] if how == "stop" else ((0.1, 1.0),)
            yield Fault(
                role, how, moment, luck.randrange(islands), luck.uniform(*luck.choice(spans))
            )


def returns(luck: random.Random, count: int) -> Iterator[Fault]:
    """Yield what one island's return takes, so many times: a client vanishes, then its worker."""
    for _ in range(count):
        for role in ("client", "worker"):
            yield Fault(role, "kill", luck.choice(MOMENTS), 1, luck.uniform(0.1, 0.5))
