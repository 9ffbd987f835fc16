"""The library of native kernels is chosen by the environment, once per process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from model_server.kernels.cpu import native

ROOT = Path(__file__).parents[4]


def described(**variables: str) -> subprocess.CompletedProcess[str]:
    """Run the module with these environment variables; it prints what is in use."""
    return subprocess.run(
        [sys.executable, "-m", "model_server.kernels.cpu.native"],
        env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **variables},
        capture_output=True,
        text=True,
        check=True,
    )


def test_kernels_that_are_turned_off_are_xlas() -> None:
    assert described(SAX_CPU_KERNELS="off").stdout == "XLA's: SAX_CPU_KERNELS=off\n"


def test_a_file_that_is_no_library_leaves_xlas_kernels_and_says_why(tmp_path: Path) -> None:
    file = tmp_path / "_native.so"
    file.write_text("not a library")
    told = described(SAX_CPU_LIBRARY=str(file)).stdout
    assert told.startswith("XLA's: the native kernels cannot be loaded, build them again: ")
    assert str(file) in told


@pytest.mark.skipif(not native.available(), reason="sax was installed without its native kernels")
def test_a_slower_instruction_set_and_threads_can_be_chosen() -> None:
    told = described(SAX_CPU_KERNELS="portable", SAX_CPU_THREADS="3")
    assert (told.stdout, told.stderr) == ("portable, 3 threads\n", "")


@pytest.mark.skipif(not native.available(), reason="sax was installed without its native kernels")
def test_an_instruction_set_that_the_machine_has_not_is_told_of() -> None:
    told = described(SAX_CPU_KERNELS="avx1024")
    assert "SAX_CPU_KERNELS=avx1024" in told.stderr
    assert told.stdout.endswith(" threads\n")


@pytest.mark.skipif(not native.available(), reason="sax was installed without its native kernels")
def test_the_rows_from_which_whole_numbers_use_amx_can_be_chosen() -> None:
    told = described(SAX_CPU_KERNELS="amx_model", SAX_CPU_AMX_ROWS="7").stdout
    if "amx_model" not in told:
        pytest.skip("the library was compiled without AMX, as for quick tests")
    assert "int8 and int4 from 7, " in told


@pytest.mark.skipif(not native.available(), reason="sax was installed without its native kernels")
def test_denormal_numbers_are_to_every_thread_what_they_are_to_xlas() -> None:
    """Threads begin as whoever asks first, and XLA's take such numbers for zeros."""
    rows = """
import ctypes, jax, jax.numpy as jnp
from model_server.kernels.cpu import native
from model_server.kernels.cpu.rows import rms_norm

native.library().sax_cpu_thread_ids((ctypes.c_int * 4)(), 4)  # this thread makes the others
x, every = jnp.full((4096, 64), 1e-40), jnp.zeros((0,), jnp.int32)
norm = jax.jit(lambda x: rms_norm(x, x, every, jnp.ones(64), epsilon=1e-6)[0])
print(len({float(row) for _ in range(20) for row in norm(x)[:, 0]}))
"""
    made = subprocess.run(
        [sys.executable, "-c", rows],
        env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "SAX_CPU_THREADS": "4"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == "1\n"
