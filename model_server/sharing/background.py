"""Threads that compile, or read new weights, give way to those that serve.

XLA:CPU compiles on threads of its own, so that a load would take turns with the steps of models
that are being served. They start with the first program that is compiled, long after those that run
programs, and no thread that starts later compiles.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

logger = logging.getLogger(__name__)

NICER = 15  # added to the niceness: a thread that serves gets 28 times as much of a busy core
_TASKS = Path("/proc/self/task")


def lower_compilers() -> int:
    """Lower the priority of XLA:CPU's compiler threads and return how many there are.

    Call it once, before anything else compiles. Does nothing on other systems than Linux and for
    other devices than CPUs.
    """
    if not _TASKS.is_dir() or jax.local_devices()[0].platform != "cpu":
        return 0
    before = _threads()
    _compile_one()
    found = _threads() - before - {thread.native_id for thread in threading.enumerate()}
    for thread in found:
        _lower(thread)
    logger.info("%d threads of the compiler have a lower priority", len(found))
    return len(found)


def give_way() -> None:
    """Lower the priority of the calling thread, and of those it starts from now on; on Linux."""
    if _TASKS.is_dir():
        _lower(threading.get_native_id())


def _lower(thread: int) -> None:
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICER)


def _compile_one() -> None:
    """Compile a program, also if jax's cache has it: to read it would start no compiler."""
    usual = bool(jax.config.jax_enable_compilation_cache)  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)
    jax.jit(jnp.tanh).lower(jax.ShapeDtypeStruct((2,), jnp.float32)).compile()
    jax.config.update("jax_enable_compilation_cache", usual)
    compilation_cache.reset_cache()  # jax asks once whether it is on


def _threads() -> set[int]:
    return {int(task.name) for task in _TASKS.iterdir()}
