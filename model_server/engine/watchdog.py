"""Notices a step that does not finish.

A device that hangs raises nothing: the engine's thread waits for it, and so does every request. One
thread looks once in a while whether the step that the engine waits for is still the same. It counts
its own looks instead of the clock: a process that was stopped and goes on has not hung.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable

from model_server.config import HUNG
from model_server.engine.step_times import StepTimes
from model_server.engine.types import Step
from sax.errors import ReplicaLost

_LOOK_S = 1.0
_TIMES = 20  # a step may take this many times as long as the longest one at load
_IMAGES = 10  # times as long may a step take that waits for images to be encoded
_MOST_ROWS = 8  # that the error names
logger = logging.getLogger(__name__)

_LAST_S = 15.0  # for requests to fail and other hosts to be told; then it ends whatever hangs too


class StepHung(ReplicaLost):
    """A step did not finish; the process must end."""


OnHang = Callable[[StepHung], None]


def limit_s(least_s: float, times: StepTimes | None) -> float:
    """Return how long a step may take, in seconds: `least_s`, more on a slow host."""
    return least_s if times is None else max(least_s, _TIMES * times.longest_s)


class Watchdog:
    """Watches the steps of one engine. `on_hang` is called once, on the watchdog's thread."""

    def __init__(self, limit_s: float, times: StepTimes | None, on_hang: OnHang) -> None:
        self._limit_s = limit_s
        self._times = times
        self._on_hang = on_hang
        self._awaited: tuple[Step | None, bool] = (None, False)
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def expect(self, step: Step | None, *, behind_images: bool = False) -> None:
        """From now on the engine waits for this step; None: it waits for requests.

        One without rows stands for the draft tokens of a draft model before it. behind_images: the
        device encodes some before it.
        """
        self._awaited = step, behind_images

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        look_s = min(_LOOK_S, self._limit_s / 4)
        seen: Step | None = None
        waited_s = 0.0
        while not self._closed.wait(look_s):
            step, behind_images = self._awaited
            limit_s = self._limit_s * (_IMAGES if behind_images else 1)
            waited_s = waited_s + look_s if step is seen else 0.0
            seen = step
            if step is not None and waited_s >= limit_s:
                self._on_hang(StepHung(self._describe(step, limit_s)))
                return

    def _describe(self, step: Step, limit_s: float) -> str:
        rows = [str(row.sequence) for row in step.rows]
        named = ", ".join(rows[:_MOST_ROWS]) + (", ..." if len(rows) > _MOST_ROWS else "")
        what = f"step {step.number} ({self._shape(step)}; sequences {named})"
        if not rows:
            what = f"the draft model's tokens for step {step.number}"
        return f"{what} did not finish within {limit_s:g} s: a device hangs; the replica restarts"

    def _shape(self, step: Step) -> str:
        if self._times is not None:
            return str(self._times.bucket(*self._times.shape(step)))
        decodes = sum(row.is_decode for row in step.rows)
        return f"{decodes} decodes and {len(step.rows) - decodes} prompts"


def tell_of_hang(hung: StepHung, give_up: Callable[[ReplicaLost], None]) -> None:
    """Log the error and the stacks of all threads, and give the replica up; called on any thread.

    The process ends within some seconds, even if its event loop hangs too.
    """
    logger.critical("%s", hung.text)
    faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
    last = threading.Timer(_LAST_S, os._exit, (HUNG,))
    last.daemon = True
    last.start()
    give_up(hung)
