"""Runs the blocking loader on its own thread and turns any exception into an error.

Callers run one load at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from model_server.engine.failure import as_load_error
from model_server.engine.worker import Worker
from model_server.loading.loaded_model import LoadedModel, Loader
from model_server.sharing.freeing import settle
from sax.errors import Cancelled, SaxError
from sax.types import ModelSpec, Progress

logger = logging.getLogger(__name__)
_TURN_S = 0.001  # that one thread may compute in Python while others wait, during a load


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
        self._phase = ""  # last reported

    async def run(self) -> LoadedModel | SaxError:
        job = Worker.once(f"load {self._spec.model_id}", self._load)
        try:
            return await asyncio.shield(asyncio.wrap_future(job))
        except asyncio.CancelledError:
            job.add_done_callback(_free)
            raise

    def cancel(self) -> None:
        """Stop the load at its next progress report; anything it still returns is freed."""
        self._cancelled.set()

    def _load(self) -> LoadedModel | SaxError:
        outcome: LoadedModel | SaxError
        try:
            with _short_turns():
                outcome = self._loader(self._spec, self._report)
            settle()
        except _StopLoading:
            outcome = Cancelled(f"the load of {self._spec.model_id} was cancelled")
        except BaseException as exc:  # MemoryError and SystemExit end the load, not the server
            logger.exception("loading failed for key: %s", self._spec.model_id)
            outcome = as_load_error(exc)
        if self._cancelled.is_set() and not isinstance(outcome, SaxError):
            outcome.close()
            outcome = Cancelled(f"the load of {self._spec.model_id} was cancelled")
        return outcome

    def _report(self, progress: Progress) -> None:
        if self._cancelled.is_set():
            raise _StopLoading
        if progress.phase != self._phase:
            self._phase = progress.phase
            settle()
        with contextlib.suppress(RuntimeError):  # the process ended first and closed the loop
            self._loop.call_soon_threadsafe(self._on_progress, progress)


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    """Let threads that serve take the interpreter from a load five times as soon.

    A step takes it several times, and each time would wait for Python's usual 5 ms.
    """
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(min(usual_s, _TURN_S))
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)


def _free(job: Future[LoadedModel | SaxError]) -> None:
    """Close a result that nobody waits for."""
    if not isinstance(outcome := job.result(), SaxError):
        outcome.close()


class _StopLoading(BaseException):
    """Unwinds a loader; a BaseException, so that no `except Exception` stops it."""
