"""Options of jax are its own, and its profiler listens where it is told to."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from model_server.process.jax_setup import _only_plugins_of_amd, check_jax_flags, start_profiler
from sax.errors import InvalidRequest

ROOT = Path(__file__).parents[3]
_SERVER = """
import importlib.metadata, sys
before = importlib.metadata.distributions
from model_server.process.jax_setup import import_jax_and_flax
import_jax_and_flax()
import model_server.process.start
assert importlib.metadata.distributions is before
print(sorted({"optax", "rich", "treescope", "tensorstore"} & set(sys.modules)))

import contextlib, io
import jax.numpy as jnp
from flax import nnx
import optax  # as a module of --import might
model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
trainer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
before = model.bias[...]
trainer.update(model, nnx.grad(lambda it: it(jnp.ones((1, 2))).sum())(model))
print(float((before - model.bias[...])[0]))
print("Linear" in nnx.tabulate(model, jnp.ones((1, 2))))
with contextlib.redirect_stdout(io.StringIO()) as shown:
    nnx.display(model)
print("Linear" in shown.getvalue())
"""


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


def test_a_server_starts_without_what_it_does_not_use_and_has_it_once_it_does() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _SERVER], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ran.stdout.splitlines() == ["[]", "1.0", "True", "True"], ran.stderr


def test_plugins_of_amd_are_found_among_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("jax_rocm7_plugin", "other"):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with _only_plugins_of_amd():
        found = [each.metadata["Name"] for each in importlib.metadata.distributions()]
    assert found == ["jax_rocm7_plugin"]
    assert len(list(importlib.metadata.distributions())) > 1
