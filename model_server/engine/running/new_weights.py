"""Weights that replace a runner's own: read in any thread, then put in place between two steps.

Programs take the weights as arguments, so nothing is compiled. A runner that sleeps has given up
its weights and pages, and has new ones once weights are put in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Protocol

import jax

from model_server.engine.running.ops import (
    DONE,
    ForgetWeights,
    Later,
    Op,
    Pending,
    ReadWeights,
    Sleep,
    WriteWeights,
)
from model_server.engine.running.runner import ModelRunner
from model_server.engine.running.runner_part import Prepare, RunnerPart
from model_server.engine.worker import Worker
from model_server.sharing.background import give_way
from model_server.sharing.freeing import free


class WeightFiles(Protocol):
    """Weights that were read and not put in place yet. Thread-safe."""

    def read(self, key: str, source: str, partial: bool) -> None:
        """Raises CheckpointError, MemoryPlanError."""
        ...

    def forget(self, key: str) -> None: ...

    def take(self, key: str) -> Mapping[int, jax.Array]:
        """Return them by their place among the runner's leaves."""
        ...

    def free(self, replaced: list[jax.Array]) -> None:
        """Free weights, perhaps so that their memory is used for the next ones."""
        ...

    def close(self) -> None:
        """Give back memory that is kept for the next ones."""
        ...


class NewWeights(RunnerPart[ModelRunner]):
    def __init__(self, files: WeightFiles, allocate: Callable[[], Sequence[Any]]) -> None:
        """allocate: makes the runner's pages."""
        self._files = files
        self._allocate = allocate
        self._freed: Future[None] | None = None  # what the last change replaced

    def join(self, runner: ModelRunner) -> Mapping[type[Op], Prepare]:
        self._runner = runner
        return {
            ReadWeights: lambda op: lambda: Later(partial(self._read, op)),
            WriteWeights: lambda op: partial(self._write, op),
            ForgetWeights: lambda op: partial(self._forget, op),
            Sleep: lambda op: self._sleep,
        }

    def _read(self, op: ReadWeights) -> None:
        """Read new weights beside those in use; no third set of them is in memory meanwhile."""
        if self._freed is not None:
            wait([self._freed])
        self._files.read(op.key, op.source, op.partial)

    def _write(self, op: WriteWeights) -> Pending[None]:
        """No step may be in flight: the memory of what is replaced is freed, on a thread."""
        given, old = self._files.take(op.key), list[jax.Array]()

        def made(held: tuple[jax.Array, ...]) -> list[jax.Array]:
            old.extend(held)
            return list(given.values())

        self._runner.replace(tuple(given), made)
        # Another host may have read the last step before this one's devices are done with it.
        jax.block_until_ready(self._runner.pages)
        if not self._runner.pages:
            self._runner.pages = tuple(self._allocate())
        self._freed = Worker.once("free old weights", partial(self._free, old))
        return DONE

    def _free(self, replaced: list[jax.Array]) -> None:
        give_way()
        self._files.free(replaced)

    def _forget(self, op: ForgetWeights) -> Pending[None]:
        self._files.forget(op.key)
        return DONE

    def _sleep(self) -> Pending[None]:
        with self._runner.held:
            pages, self._runner.pages = jax.block_until_ready(self._runner.pages), ()
        free([*self._runner.leaves, *jax.tree.leaves(pages)])
        self._files.close()
        return DONE

    def close(self, *, shared: bool) -> None:
        self._files.close()
