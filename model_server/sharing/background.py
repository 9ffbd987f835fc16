"""Threads that compile give way to those that serve.

XLA:CPU compiles on threads of its own, as many as there are cores, so that a load would take turns
with the steps of models that are being served. They are found by what they do: after the backend
has made its threads and before anything runs on them, those that work while programs compile are
the compiler's.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp

logger = logging.getLogger(__name__)

NICER = 15  # added to the niceness: a thread that serves gets 28 times as much of a busy core
_AT_ONCE = 8  # compiles, so that most threads of the pool get one
_LOOKS = 4  # at who compiles; another thread may wake for a moment, but hardly in two of them
_TASKS = Path("/proc/self/task")


def lower_compilers() -> int:
    """Lower the priority of XLA:CPU's compiler threads and return how many there are.

    Call it once, before anything else uses jax's devices. Does nothing on other systems than Linux
    and for other devices than CPUs.
    """
    before = _run_times()
    if not before or jax.local_devices()[0].platform != "cpu":
        return 0
    _ran_while_compiling()  # meanwhile the backend's threads have started and gone to sleep
    ran = Counter(thread for _ in range(_LOOKS) for thread in _ran_while_compiling())
    found = {thread for thread, looks in ran.items() if looks > 1} - before.keys()
    for thread in found:
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICER)
    logger.info("%d threads of the compiler have a lower priority", len(found))
    return len(found)


def _ran_while_compiling() -> set[int]:
    """Compile some programs and return the threads, but for Python's, that ran meanwhile."""
    before = _run_times()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(_compile_one, range(_AT_ONCE)))
        own = {thread.native_id or 0 for thread in threading.enumerate()}
        now = _run_times()
    return {thread for thread, ran in now.items() if ran > before.get(thread, 0)} - own


def _compile_one(number: int) -> None:
    shape = jax.ShapeDtypeStruct((2, 2 + number), jnp.float32)
    jax.jit(lambda x: jnp.tanh(x) + number).lower(shape).compile()


def _run_times() -> dict[int, int]:
    """Return the nanoseconds that each thread of this process ran, by thread id."""
    times: dict[int, int] = {}
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        try:
            times[int(task.name)] = int((task / "schedstat").read_text().split()[0])
        except (OSError, ValueError, IndexError):  # it ended, or this kernel does not count
            continue
    return times
