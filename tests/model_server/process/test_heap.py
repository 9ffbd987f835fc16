"""Memory that steps free stays in the process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

needs_mallopt = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt"
)
FAULTS = """
import resource, sys, threading
from model_server.process.heap import keep_freed_memory

kept = sys.argv[1] == "kept" and keep_freed_memory()
import jax, jax.numpy as jnp

values = jnp.ones(10 * 2**20)
step = jax.jit(lambda values: [values + each for each in range(2)])

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(step(values))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def run():
    counts = [faults() for _ in range(12)]
    print(kept, min(counts[5:]))

thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def page_faults(how: str) -> tuple[bool, int]:
    """Return the page faults of a step on a thread of a new process: the fewest of 7, as on a busy
    machine the two results of a step are freed in either order.

    A step has two results of 40 MiB: glibc raises its thresholds by itself, but not beyond 32 MiB.
    """
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    told = subprocess.run(
        [sys.executable, "-c", FAULTS, how],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return told[0] == "True", int(told[1])


@needs_mallopt
def test_a_step_faults_no_pages_in_again_where_freed_memory_is_kept() -> None:
    kept, after = page_faults("kept")
    assert kept
    _, before = page_faults("returned")
    assert after < before / 4
