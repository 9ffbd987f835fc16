"""Programs that are compiled ahead are there, once each, when they are asked for, by the compiler's
options for their devices.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from model_server.engine.compiling import CompiledAhead, options_for, understood
from tests.model_server.tpu_compiler import mesh_of, needs_compiler


class Compiler:
    """Programs that are text; counts how often each was made."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.passed: list[str] = []
        self.release = threading.Event()

    def compiled(self, name: str, lower: Callable[[], Any]) -> Any:
        assert self.release.wait(60)
        self.made.append(name)
        return f"{name}: {lower()}"

    def pass_on(self, name: str, body: bytes) -> None:
        self.passed.append(name)


def ahead_of(lowers: dict[str, Any], compiler: Compiler) -> CompiledAhead:
    return CompiledAhead(lowers, compiler)


def text(name: str) -> Callable[[], Any]:
    return lambda: name


def test_all_are_compiled_while_nobody_asks_and_none_twice() -> None:
    compiler = Compiler()
    ahead = ahead_of({"a": lambda: "A", "b": lambda: "B", "c": lambda: "C"}, compiler)
    compiler.release.set()
    assert [ahead.compiled(name, unasked) for name in "cab"] == ["c: C", "a: A", "b: B"]
    assert sorted(compiler.made) == ["a", "b", "c"]
    ahead.close()


def test_a_name_that_comes_again_is_another_program() -> None:
    """A draft model's programs have the names of its model's."""
    compiler = Compiler()
    compiler.release.set()
    ahead = ahead_of({"a": lambda: "model's"}, compiler)
    assert ahead.compiled("a", unasked) == "a: model's"
    assert ahead.compiled("a", text("draft's")) == "a: draft's"
    ahead.close()


def test_what_does_not_compile_fails_whoever_asks_for_it() -> None:
    compiler = Compiler()
    compiler.release.set()
    ahead = ahead_of({"a": unasked, "b": lambda: "B"}, compiler)
    with pytest.raises(AssertionError, match="nobody"):
        ahead.compiled("a", unasked)
    assert ahead.compiled("b", unasked) == "b: B"
    ahead.close()


def test_closing_skips_the_rest() -> None:
    compiler = Compiler()
    names = [str(number) for number in range(50)]
    ahead = ahead_of({name: lambda: "" for name in names}, compiler)
    threading.Timer(0.2, compiler.release.set).start()
    ahead.close()
    assert len(compiler.made) < len(names)


def unasked() -> Any:
    raise AssertionError("nobody asked for this")


_SOLVES = """
import jax, jax.numpy as jnp, sys
from model_server.engine.compiling import from_bytes, to_bytes
matrix, wanted = jnp.array([[1.0, 0.0], [3.0, 1.0]]), jnp.array([[2.0], [7.0]])
place = sys.argv[1]
if sys.argv[2] == "make":
    solve = jax.jit(lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True))
    open(place, "wb").write(to_bytes(solve.lower(matrix, wanted).compile()))
else:
    print(from_bytes(open(place, "rb").read())(matrix, wanted).tolist())
"""


def test_a_program_of_another_process_may_call_lapack(tmp_path: Path) -> None:
    """This one has not lowered any that does: jax has not loaded it."""
    for role in ("make", "run"):
        done = subprocess.run(
            [sys.executable, "-c", _SOLVES, str(tmp_path / "program"), role],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "[[2.0], [1.0]]\n"


def test_a_cpu_is_told_nothing() -> None:
    assert options_for(SingleDeviceSharding(jax.devices()[0])) == {}


@needs_compiler
def test_code_of_like_layers_is_written_once_for_a_tpu() -> None:
    sharding = NamedSharding(mesh_of("v5e:2x2"), PartitionSpec())
    assert options_for(sharding) == {"xla_tpu_enable_deduplicated_calls": True}


@needs_compiler
def test_an_option_that_this_libtpu_does_not_know_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert understood(("xla_tpu_no_such_option",), mesh_of("v6e:2x2").devices.flat[0]) == ()
    assert "does not know xla_tpu_no_such_option" in caplog.text
