"""Threads, open files and memory of a process, as Linux tells them, and whether they grow."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# A process starts some of its threads when it first needs them: its first quiet moments set the
# bound for all later ones.
WARM = 3
# jaxlib's client has two connections or three, after it has connected again; there are two clients.
_CONNECTIONS = 2
# Memory is compared by medians of so many moments, early and late.
_MOMENTS = 5
# MiB: what allocators keep, of compilers above all, differs by as much from moment to moment. An
# array of 16 MiB left behind at every return would be 250 MiB at the end.
_GROWTH_MIB = {"manager": 4.0, "proxy": 16.0, "worker": 48.0}


class Held(NamedTuple):
    """Of one process at a quiet moment."""

    pid: int
    threads: int
    files: int
    resident_mib: float


def held(pid: int) -> Held:
    """Look a process up in /proc."""
    folder = Path(f"/proc/{pid}")
    found = re.search(r"VmRSS:\s+(\d+) kB", (folder / "status").read_text())
    assert found is not None
    count = {name: len(list((folder / name).iterdir())) for name in ("task", "fd")}
    return Held(pid, count["task"], count["fd"], int(found[1]) / 1024)


class Pressure:
    """The machine's lack of processors since this was made: slow answers may come of that."""

    def __init__(self) -> None:
        self._began_s, self._waited_s = time.monotonic(), _waited_s()

    def share(self) -> float:
        """Return the share of the time in which something waited; 0 where Linux does not tell."""
        return (_waited_s() - self._waited_s) / (time.monotonic() - self._began_s)


def _waited_s() -> float:
    try:
        found = re.search(r"some .*total=(\d+)", Path("/proc/pressure/cpu").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1e6 if found else 0.0


def per_process(moments: Sequence[Mapping[str, Held]]) -> Iterator[tuple[str, list[Held]]]:
    """Yield the series of each process that was there at enough moments, by role."""
    found: dict[tuple[str, int], list[Held]] = {}
    for moment in moments:
        for role, one in moment.items():
            found.setdefault((role, one.pid), []).append(one)
    for (role, _), series in found.items():
        if len(series) > WARM:
            yield role, series


def resident(series: Sequence[Held]) -> tuple[float, float]:
    """Return the medians of early and late memory, in MiB."""
    sizes = [one.resident_mib for one in series[WARM:]]
    return statistics.median(sizes[:_MOMENTS]), statistics.median(sizes[-_MOMENTS:])


def grown(role: str, series: Sequence[Held]) -> Iterator[str]:
    """Yield what a process holds more of than when it was young."""
    for what in ("threads", "files"):
        counts = [getattr(one, what) for one in series]
        slack = _CONNECTIONS if (role, what) == ("proxy", "files") else 0
        if max(counts[WARM:]) > max(counts[:WARM]) + slack:
            yield f"{role}: {what} at its quiet moments were {counts}"
    if len(series) < WARM + 2 * _MOMENTS:
        return
    early, late = resident(series)
    if late - early > _GROWTH_MIB[role.split()[0]]:
        sizes = [round(one.resident_mib) for one in series]
        yield f"{role}: its memory grew by {late - early:.0f} MiB: {sizes}"
