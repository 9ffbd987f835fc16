"""Environment of the processes of tests: how XLA compiles, and fake devices.

A program of a test runs for moments, and making it fast takes most of the time, so XLA leaves out
all passes that only do that. What is computed stays the same. `XLA_FLAGS= make test-all` compiles
as servers do.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The last one halves what is left. libtpu aborts at flags that it does not know, as that would be.
QUICK_COMPILER = (
    "--xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true "
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
)


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
