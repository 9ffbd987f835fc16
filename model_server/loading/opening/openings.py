"""Opens checkpoints within a time limit: a file system or a bucket may never answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from model_server.engine.worker import Worker
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)

T = TypeVar("T")
_MOST_HANGING = 8


class Openings:
    """Runs what reads configurations, headers and tokenizers. Thread-safe.

    A thread that waits for a file system cannot be stopped: it is left behind and counted.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self.hanging = 0  # threads left behind that have not ended

    def run(self, path: str, job: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """Return what `job` returns; `undo` gets what it returns too late.

        Raises what the job raises, and CheckpointError if it takes too long.
        """
        if self.hanging >= _MOST_HANGING:
            raise CheckpointError(
                f"{path} is not opened: {self.hanging} checkpoints that were opened earlier still "
                "do not answer; restart this model server"
            )
        opening = Worker.once(f"load opening {path}", job)
        try:
            return opening.result(self._seconds)
        except TimeoutError:
            if opening.done():  # the job's own
                raise
            self._leave(path, opening, undo)
            raise CheckpointError(
                f"{path} could not be opened within {self._seconds:g} s: its file system or bucket "
                "does not answer; --open_seconds is the limit"
            ) from None

    def _leave(self, path: str, opening: Future[T], undo: Callable[[T], None] | None) -> None:
        with self._lock:
            self.hanging += 1
        logger.warning("a thread that opens %s hangs; now %d such threads", path, self.hanging)

        def ended(late: Future[T]) -> None:
            with self._lock:
                self.hanging -= 1
            if undo is not None and late.exception() is None:
                undo(late.result())

        opening.add_done_callback(ended)
