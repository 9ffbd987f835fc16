"""A name for this very process on this very machine, by which others here can tell that it is gone.

Lets an admin server that is started again after a crash lead at once, instead of waiting until the
silence of its former self is long enough. Only where /proc is; elsewhere nobody is called gone.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

_PROC = Path("/proc")


def own_mark() -> str:
    """Machine, process namespace, process id and its time of start; "" where that is not told."""
    machine, pid = _machine(), os.getpid()
    started = _started(pid)
    return f"{machine} {pid} {started}" if machine and started else ""


def is_gone(mark: str) -> bool:
    """Has the process of this mark ended? False if it ran elsewhere: nobody here can tell."""
    parts = mark.split(" ")
    if len(parts) != 3 or parts[0] != _machine():
        return False
    return _started(int(parts[1])) != parts[2]


@functools.cache
def _machine() -> str:
    """This start of this machine, and the namespace in which process ids count."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process was started, in ticks; "" if there is none."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
