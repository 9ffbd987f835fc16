"""Runs the blocking loader on its own thread and turns any exception into an error.

Callers run one load at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from model_server.engine.failure import as_load_error
from model_server.engine.worker import Worker
from model_server.loading.loaded import AnyLoaded, Loader
from sax.errors import Cancelled, SaxError
from sax.types import ModelSpec, Progress

logger = logging.getLogger(__name__)


class LoadThread:
    """One load. Runs on the event loop, except for the loader itself."""

    def __init__(
        self, loader: Loader, spec: ModelSpec, on_progress: Callable[[Progress], None]
    ) -> None:
        self._loader = loader
        self._spec = spec
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._cancelled = threading.Event()

    async def run(self) -> AnyLoaded | SaxError:
        job = Worker.once(f"load {self._spec.model_id}", self._load)
        try:
            return await asyncio.shield(asyncio.wrap_future(job))
        except asyncio.CancelledError:
            job.add_done_callback(_free)
            raise

    def cancel(self) -> None:
        """Stop the load at its next progress report; anything it still returns is freed."""
        self._cancelled.set()

    def _load(self) -> AnyLoaded | SaxError:
        outcome: AnyLoaded | SaxError
        try:
            outcome = self._loader(self._spec, self._report)
        except _StopLoading:
            outcome = Cancelled(f"the load of {self._spec.model_id} was cancelled")
        except BaseException as exc:  # MemoryError and SystemExit end the load, not the server
            logger.exception("loading failed for key: %s", self._spec.model_id)
            outcome = as_load_error(exc)
        if self._cancelled.is_set() and isinstance(outcome, AnyLoaded):
            outcome.runner.close()
            outcome = Cancelled(f"the load of {self._spec.model_id} was cancelled")
        return outcome

    def _report(self, progress: Progress) -> None:
        if self._cancelled.is_set():
            raise _StopLoading
        with contextlib.suppress(RuntimeError):  # the process ended first and closed the loop
            self._loop.call_soon_threadsafe(self._on_progress, progress)


def _free(job: Future[AnyLoaded | SaxError]) -> None:
    """Close a result that nobody waits for."""
    if isinstance(outcome := job.result(), AnyLoaded):
        outcome.runner.close()


class _StopLoading(BaseException):
    """Unwinds a loader; a BaseException, so that no `except Exception` stops it."""
