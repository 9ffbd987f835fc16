"""This machine and process: its memory, files, event loop and open addresses."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sax.distribution import how_to_install

if TYPE_CHECKING:
    import asyncio


def missing_model_server(what: str) -> str | None:
    """Return why `what` cannot run here and how to fix it; None if it can."""
    if importlib.util.find_spec("jax") is not None:
        return None
    return f"{what} needs jax, which is not installed here: {how_to_install('cpu')}"


def machine_memory(cgroup: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Return the bytes of memory of this machine, or its container's limit if lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = cgroup.read_text().strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical


def xla_threads(cpu_devices: int) -> int:
    """Return how many threads XLA needs for so many CPU devices that wait for each other (NPROC).

    By itself it has one per core, and deadlocks where those are fewer than the devices.
    """
    return max(16, 4 * cpu_devices)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory, which is faster, for `asyncio.Runner`; None if not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def allow_open_files(count: int) -> None:
    """Raise this process's own limit of open files to `count`, as far as its owner may."""
    try:
        import resource
    except ImportError:  # Windows, where sockets are not files
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


_FRAME = "!" * 78


def open_warning(host: str, *, closed: bool, offers: str, remedy: str) -> str:
    """Return the warning; "" if callers must authenticate or the address is loopback.

    `offers` says what anyone could do, `remedy` how to start the process instead.
    """
    if closed or is_loopback(host):
        return ""
    return "\n".join(
        (
            "anyone may call",
            _FRAME,
            f"OPEN TO EVERYONE: listening on {host or 'every address'} without authentication.",
            f"Anyone who reaches this port can {offers}.",
            f"To close it: {remedy}; see docs/how_to/security.md.",
            _FRAME,
        )
    )


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the host; other names count as remote."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
