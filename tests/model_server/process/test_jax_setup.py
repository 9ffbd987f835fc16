"""Options of jax are its own, and its profiler listens where it is told to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from model_server.process.jax_setup import check_jax_flags, start_profiler
from sax.errors import InvalidRequest

ROOT = Path(__file__).parents[3]


def test_options_that_jax_has_are_taken() -> None:
    check_jax_flags(["jax_enable_checks=true", "jax_platforms=cpu"])


def test_an_option_that_jax_has_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidRequest, match="--jax_enable_check is .*did you mean --jax_enable_c"):
        check_jax_flags(["jax_enable_check=true"])


def test_a_value_that_jax_does_not_take_is_refused() -> None:
    program = "from model_server.process.jax_setup import *; check_jax_flags(['jax_enable_checks'])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "JAX_ENABLE_CHECKS": "perhaps"},
        capture_output=True,
        text=True,
    )
    assert "jax takes no such flag value" in done.stderr.splitlines()[-1]


def test_the_profiler_listens_at_its_port() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} .--jax_profiler_port"):
            start_profiler(port)
    start_profiler(port)
    try:
        with socket.create_connection(("127.0.0.1", port), 10):
            pass
    finally:
        jax.profiler.stop_server()


def test_without_a_port_there_is_no_profiler() -> None:
    start_profiler(0)
    with pytest.raises(ValueError, match="No active profiler"):
        jax.profiler.stop_server()
