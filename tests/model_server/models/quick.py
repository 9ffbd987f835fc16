"""Compiling for one run: the tests of families spend their time in the compiler, not in the code.

The compiler leaves out what only makes programs faster; on small models that takes a third of the
time, and what is computed stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from model_server.engine.compiling import Programs

_UNOPTIMISED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def quick(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """The function compiled for arguments of these shapes."""
    return jax.jit(function).lower(*arguments).compile(compiler_options=_UNOPTIMISED)


class _Quick:
    """Makes a runner's programs."""

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        return lower().compile(compiler_options=_UNOPTIMISED)

    def pass_on(self, name: str, body: bytes) -> None:
        """Does nothing: no other host waits."""


QUICK: Programs = _Quick()
