"""A runner on an island that may be lost: what its devices raise then becomes DevicesLost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from model_server.engine.failure import DevicesLost
from model_server.engine.running.ops import Forwarding, Op, Pending, Runner
from model_server.engine.types import Step

# The first words of errors of devices that are gone, and of a proxy server that is: ours says the
# first, Google's also the last two (pathwaysutils.elastic). INTERNAL, there a loss as well, may be
# a fault of the program, which would end one island after another.
_LOST = ("DATA_LOSS", "UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED", "NOT_FOUND")


class IslandRunner(Forwarding):
    """One lane of a pipeline, or a whole model."""

    def __init__(self, runner: Runner, others: Sequence[Runner] = ()) -> None:
        """others: the pipeline's other lanes."""
        super().__init__(runner)
        self.lanes = (self, *map(IslandRunner, others))

    def warm(self, index: int) -> None:
        with _told_as_lost():
            super().warm(index)

    def launch(self, *steps: Step) -> IslandPending:
        with _told_as_lost():
            return IslandPending(super().launch(*steps))

    def do(self, op: Op) -> IslandPending:
        with _told_as_lost():
            return IslandPending(super().do(op))

    def close(self) -> None:
        """Free what is still there of this lane."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            super().close()


class IslandPending:
    """What was launched on an island."""

    def __init__(self, pending: Pending[Any]) -> None:
        self._pending = pending

    def result(self) -> Any:
        with _told_as_lost():
            return self._pending.result()


def is_loss(error: BaseException) -> bool:
    """Return True if the devices, or what was on them, are gone; False for wrong programs."""
    return isinstance(error, jax.errors.JaxRuntimeError) and str(error).startswith(_LOST)


@contextlib.contextmanager
def _told_as_lost() -> Iterator[None]:
    try:
        yield
    except jax.errors.JaxRuntimeError as exc:
        if not is_loss(exc):
            raise
        raise DevicesLost(str(exc).partition("\n")[0]) from exc
