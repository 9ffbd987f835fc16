"""CPU seconds of other processes, and who their children are, from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def cpu_s(pid: int) -> float:
    """User and system time of all threads so far, in seconds; good to a clock tick (10 ms)."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def thread_cpu_s(pid: int, thread: int) -> float:
    """The time one of its threads was running, in seconds; exact."""
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9


def trees(roots: Iterable[int]) -> frozenset[int]:
    """These processes and all that they started, directly or not."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended just now
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
    return descendants(frozenset(roots), parents)


def descendants(roots: frozenset[int], parents: dict[int, int]) -> frozenset[int]:
    """The roots and whoever has one of them above; `parents` maps process to parent."""
    found = roots
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _stat(pid: int) -> list[str]:
    """The fields after the name: the state, the parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
