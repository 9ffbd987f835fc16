"""A kernel's refusal as the error that a load or a plan ends with: kernels know none of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from model_server.kernels.refusal import KernelRefusal
from sax.errors import MemoryPlanError


@contextmanager
def told_as_plan_error(of: str = "") -> Iterator[None]:
    """Raises MemoryPlanError where a kernel does not take the shapes of `of`."""
    try:
        yield
    except KernelRefusal as exc:
        raise MemoryPlanError(f"{of}: {exc}" if of else str(exc)) from exc
