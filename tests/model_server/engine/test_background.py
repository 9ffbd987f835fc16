"""Compiler threads give way to threads that run steps; in a process of its own, as at a start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_PROGRAM = """
import json, os, threading
os.environ["JAX_PLATFORMS"] = "cpu"
from model_server.engine import background
import jax, jax.numpy as jnp, numpy as np
nice = lambda thread: os.getpriority(os.PRIO_PROCESS, thread)
busy = lambda before: {t for t, ran in background._run_times().items() if ran > before.get(t, 0)}
found = background.lower_compilers()
made = background._run_times().keys() - {os.getpid()}
python = {thread.native_id for thread in threading.enumerate()}
x = np.ones((600, 600), np.float32)
before = background._run_times()
program = jax.jit(lambda x: jnp.tanh(x @ x) @ x).lower(x).compile()
compiling = [nice(thread) for thread in busy(before) - python]
before = background._run_times()
for _ in range(5):
    program(x).block_until_ready()
running = [nice(thread) for thread in busy(before) if thread in made]
print(json.dumps([found, nice(0), running, compiling]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_compiler_threads_give_way_and_those_that_run_programs_do_not() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, own, running, compiling = json.loads(done.stdout.splitlines()[-1])
    assert found > 0
    assert running
    assert set(running) == {own}
    assert compiling
    assert min(compiling) > own
