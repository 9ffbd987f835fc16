"""A mark of this process on this machine, so that others here can tell when it is gone.

An admin server restarted after a crash can then lead at once instead of waiting out its own
silence. Needs /proc; elsewhere no process is ever considered gone.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

_PROC = Path("/proc")


def own_mark() -> str:
    """Machine, process namespace, process id and start time; "" if unavailable."""
    machine, pid = _machine(), os.getpid()
    started = _started(pid)
    return f"{machine} {pid} {started}" if machine and started else ""


def is_gone(mark: str) -> bool:
    """True if the process has ended; False if it ran elsewhere, where we cannot tell."""
    parts = mark.split(" ")
    if len(parts) != 3 or parts[0] != _machine():
        return False
    return _started(int(parts[1])) != parts[2]


@functools.cache
def _machine() -> str:
    """The boot id of this machine and its process id namespace."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Start time of a process in ticks; "" if there is none."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
