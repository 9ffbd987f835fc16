"""Admission: count requests in progress and refuse new ones while the process drains.

Shared by the handlers of every kind of model. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

from model_server.method_stats import WindowCount
from model_server.servable import Servable
from sax.errors import Cancelled, InvalidRequest, QueueFull, ShuttingDown


class Admission:
    """Admission control for the whole process."""

    def __init__(self) -> None:
        self.draining = False
        self.rejections = WindowCount()  # queue full or draining
        self._inside = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def check_open(self) -> None:
        """Raise ShuttingDown while draining, and count the rejection."""
        if self.draining:
            self.rejections.add(time.monotonic())
            raise ShuttingDown("this model server is shutting down; try another replica")

    def enter(self) -> None:
        """Count a request in; call `leave` when it is over."""
        self._inside += 1
        self._idle.clear()

    def leave(self) -> None:
        self._inside -= 1
        if not self._inside:
            self._idle.set()

    def refused(self, exc: BaseException) -> None:
        """Count a rejection, if that is what this error is."""
        if isinstance(exc, (QueueFull, ShuttingDown)):
            self.rejections.add(time.monotonic())

    @contextlib.contextmanager
    def request(self, servable: Servable, method: str) -> Iterator[None]:
        """Count one whole request and record its latency and outcome."""
        stats, began_s = servable.methods[method], time.monotonic()
        stats.begin()
        self.enter()
        try:
            yield
        except (asyncio.CancelledError, Cancelled):
            stats.leave()
            servable.cancelled += 1
            raise
        except BaseException as exc:
            stats.fail(time.monotonic())
            self.refused(exc)
            raise
        else:
            now = time.monotonic()
            stats.succeed(now, now - began_s)
        finally:
            self.leave()

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for running ones; return False on timeout."""
        self.draining = True
        if self._idle.is_set():
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


def refusal(servable: Servable, method: str) -> InvalidRequest:
    """Return the error for a method that the model does not serve."""
    return InvalidRequest(
        f"{servable.model_id} is {servable.kind} and does not serve {method}; it serves "
        f"{', '.join(servable.methods)}",
        param="model",
    )
