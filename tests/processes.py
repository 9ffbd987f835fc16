"""Processes of tests: their environment (how XLA compiles, fake devices), ports and memory.

A program of a test runs for moments, and making it fast takes most of the time, so XLA leaves out
all passes that only do that. What is computed stays the same. `XLA_FLAGS= make test-all` compiles
as servers do.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

ROOT = Path(__file__).parents[1]
# The last one halves what is left. libtpu aborts at flags that it does not know, as that would be.
QUICK_COMPILER = (
    "--xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true "
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
)
# Below those that the system gives to connections and to servers on port 0: tests beside this one
# make many of both before the process binds that a port is chosen for, or is started again.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports nobody holds now; all bound at once so that they differ."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            held.append(each := socket.socket())
            with suppress(OSError):  # somebody holds it
                each.bind(("127.0.0.1", SystemRandom().choice(_PORTS)))
                continue
            held.pop().close()
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 once it is gone."""
    with suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def on_devices(count: int) -> dict[str, str]:
    """Return the environment of a process with that many fake devices.

    Their number is fixed before jax starts, so a script of the tests that needs several has a
    process of its own.
    """
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(count),
        "NPROC": str(4 * count),  # threads: fewer than devices can wait for each other for ever
        "PYTHONPATH": str(ROOT),
    }
