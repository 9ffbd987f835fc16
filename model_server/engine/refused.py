"""Converts kernel refusals to MemoryPlanError, so that kernels need not import sax errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from model_server.kernels.refusal import KernelRefusal
from sax.errors import MemoryPlanError


@contextmanager
def told_as_plan_error(of: str = "") -> Iterator[None]:
    """Raise MemoryPlanError if a kernel refuses the shapes of `of`."""
    try:
        yield
    except KernelRefusal as exc:
        raise MemoryPlanError(f"{of}: {exc}" if of else str(exc)) from exc
