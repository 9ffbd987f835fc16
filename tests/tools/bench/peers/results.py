"""Figures of a race, and its table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.tools.bench.table import Table


@dataclass(frozen=True, slots=True)
class Heat:
    """One burst of one peer."""

    peer: str
    weights: str
    workload: str
    streams: int
    tokens_per_s: float
    first_token_s: float  # median of the burst's streams
    cpu_s_per_token: float  # user and system time of all the peer's processes


@dataclass(frozen=True, slots=True)
class Stay:
    """One life of a peer: from its start to its end, between which are its heats."""

    peer: str
    weights: str
    streams: int
    ready_s: float
    resident_bytes: int  # of all its processes, after the heats


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a peer is not in a table, or in none."""

    peer: str
    reason: str
    weights: str | None = None  # None: of any format


@dataclass
class Results:
    heats: list[Heat] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)
    absent: list[Absence] = field(default_factory=list)

    def median(self, figure: Callable[[Heat], float], **where: object) -> float | None:
        """The median of a figure over the heats whose fields are `where`; None without any."""
        found = [figure(heat) for heat in self.heats if _holds(heat, where)]
        return statistics.median(found) if found else None

    def ready_s(self, peer: str, weights: str) -> float:
        return statistics.median(s.ready_s for s in self._stays(peer, weights))

    def resident_bytes(self, peer: str, weights: str) -> int:
        """The most that it held in any of its lives."""
        return max(s.resident_bytes for s in self._stays(peer, weights))

    def peers(self, weights: str) -> list[str]:
        """Those that raced, in the order in which they first did."""
        return list(dict.fromkeys(heat.peer for heat in self.heats if heat.weights == weights))

    def absent_from(self, weights: str) -> list[str]:
        """A line for each peer that is not in the table of this format."""
        return [f"{a.peer}: {a.reason}" for a in self.absent if a.weights in (None, weights)]

    def _stays(self, peer: str, weights: str) -> Iterable[Stay]:
        return (s for s in self.stays if (s.peer, s.weights) == (peer, weights))


def table(
    results: Results, weights: str, title: str, how: str, workloads: Sequence[str],
    streams: Sequence[int],
) -> Table:  # fmt: skip
    """A row per workload and peer; a cell with several figures has one per number of streams."""
    counts = " / ".join(map(str, streams))
    columns = (
        *("workload", "server", f"tokens/s at {counts} streams", f"first token ms at {counts}"),
        *("CPU ms per token", "start s", "memory MB"),
    )
    made = Table(title, how, columns)
    for workload in workloads:
        for peer in results.peers(weights):
            made.add(workload, peer, *_cells(results, weights, workload, peer, streams))
    return made


def _cells(
    results: Results, weights: str, workload: str, peer: str, streams: Sequence[int]
) -> tuple[str, ...]:
    def each(figure: Callable[[Heat], float], digits: int) -> str:
        where = {"peer": peer, "weights": weights, "workload": workload}
        medians = (results.median(figure, **where, streams=count) for count in streams)
        return " / ".join("-" if m is None else f"{m:.{digits}f}" for m in medians)

    return (
        each(lambda heat: heat.tokens_per_s, 0),
        each(lambda heat: heat.first_token_s * 1e3, 0),
        each(lambda heat: heat.cpu_s_per_token * 1e3, 1),
        f"{results.ready_s(peer, weights):.1f}",
        f"{results.resident_bytes(peer, weights) / 1e6:.0f}",
    )


def _holds(heat: Heat, where: dict[str, object]) -> bool:
    return all(getattr(heat, name) == value for name, value in where.items())
