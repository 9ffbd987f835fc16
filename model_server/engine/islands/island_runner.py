"""A runner on an island that may be lost: what its devices raise then becomes DevicesLost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import jax

from model_server.engine.failure import DevicesLost
from model_server.engine.media.encode_batch import EncodeBatch
from model_server.engine.types import (
    EngineLimits,
    HeldRunner,
    MediaRunner,
    PendingStep,
    SeriesRunner,
    SlotMask,
    Step,
    StepResult,
)

# The first words of errors of devices that are gone, and of a proxy server that is: ours says the
# first, Google's also the last two (pathwaysutils.elastic). INTERNAL, there a loss as well, may be
# a fault of the program, which would end one island after another.
_LOST = ("DATA_LOSS", "UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED", "NOT_FOUND")


class IslandRunner:
    """Has the methods of the runner that it wraps, which may be one lane of a pipeline."""

    def __init__(self, runner: HeldRunner, others: Sequence[HeldRunner] = ()) -> None:
        """others: the pipeline's other lanes."""
        self._runner = runner
        self.lanes = (self, *map(IslandRunner, others))

    @property
    def limits(self) -> EngineLimits:
        return self._runner.limits

    @property
    def closed(self) -> bool:
        return self._runner.closed

    @property
    def warmups(self) -> int:
        return self._runner.warmups

    def warm(self, index: int) -> None:
        with _told_as_lost():
            self._runner.warm(index)

    def launch(self, step: Step) -> PendingStep:
        with _told_as_lost():
            return IslandStep(self._runner.launch(step))

    def launch_series(self, steps: Sequence[Step]) -> Sequence[PendingStep]:
        assert isinstance(self._runner, SeriesRunner), "its limits allow no series"
        with _told_as_lost():
            return list(map(IslandStep, self._runner.launch_series(steps)))

    def encode(self, batch: EncodeBatch) -> None:
        assert isinstance(self._runner, MediaRunner), "its limits are those of an encoder"
        with _told_as_lost():
            self._runner.encode(batch)

    def choose(self, masks: Sequence[SlotMask]) -> None:
        with _told_as_lost():
            self._runner.choose(masks)

    def close(self) -> None:
        """Free what is still there of this lane."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._runner.close()


class IslandStep:
    """A launched step."""

    def __init__(self, step: PendingStep) -> None:
        self._step = step

    def result(self) -> StepResult:
        with _told_as_lost():
            return self._step.result()


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
