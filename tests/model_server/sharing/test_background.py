"""Compiler threads give way to threads that run steps; in a process of its own, as at a start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from model_server.sharing.background import NICER, give_way

_PROGRAM = """
import json, os, sys, threading
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_COMPILATION_CACHE_DIR"] = sys.argv[1]
from model_server.sharing import background
import jax, jax.numpy as jnp, numpy as np
from pathlib import Path

def run_times():  # nanoseconds, by thread
    times = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            times[int(task.name)] = int((task / "schedstat").read_text().split()[0])
        except OSError:  # it ended
            pass
    return times

def work(before):  # nanoseconds by niceness; Python's own threads are left out
    done = {}
    for thread, ran in run_times().items():
        if thread not in python:
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            done[nice] = done.get(nice, 0) + ran - before.get(thread, 0)
    return done

found = background.lower_compilers()
python = {thread.native_id for thread in threading.enumerate()}
x = np.ones((1000, 1000), np.float32)
jax.config.update("jax_enable_compilation_cache", False)  # these are to be compiled
before = run_times()
for n in range(8):  # each lands on some thread of the compiler's
    program = jax.jit(lambda x: jnp.tanh(x @ x + n) @ x).lower(x).compile()
compiling = work(before)
before = run_times()
for _ in range(20):
    program(x).block_until_ready()
running = work(before)
own = os.getpriority(os.PRIO_PROCESS, 0)
share = lambda work: sum(ns for nice, ns in work.items() if nice > own) / sum(work.values())
print(json.dumps([found, share(compiling), share(running)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_compiler_threads_give_way_and_those_that_run_programs_do_not(tmp_path: Path) -> None:
    for cache in ("empty", "of an earlier start"):
        found, compiling, running = _shares(tmp_path)
        assert found > 0, cache
        assert compiling > 0.2, (cache, compiling)  # two of the three that compile, most times
        assert running < 0.05, (cache, running)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_a_thread_that_gives_way_lowers_itself_and_those_it_starts_and_no_other() -> None:
    def own() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def lowered() -> tuple[int, int]:
        give_way()
        with ThreadPoolExecutor(1) as started:
            return own(), started.submit(own).result()

    before, lowest = own(), 19
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lowered).result() == (min(before + NICER, lowest),) * 2
    assert own() == before


def _shares(cache: Path) -> tuple[int, float, float]:
    """Return the threads found, and the shares that those of a lower priority have in the work of
    compiling and of running.
    """
    command = [sys.executable, "-c", _PROGRAM, str(cache)]
    environ = {**os.environ, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, compiling, running = json.loads(done.stdout.splitlines()[-1])
    return found, compiling, running
