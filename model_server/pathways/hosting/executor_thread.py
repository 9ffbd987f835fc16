"""The thread that runs an executor: requests in order, answers back on the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from model_server.pathways.hosting.seam import RequestExecutor
from model_server.pathways.islands.host import Answered, Errand
from model_server.pathways.protocol.messages import IfrtRequest
from model_server.pathways.scheduling.handles import INTERNAL, Fault
from model_server.pathways.scheduling.merging import NOBODY, Buffer, Reply
from model_server.pathways.scheduling.refusals import refused

logger = logging.getLogger(__name__)

_END_S = 5.0


class ExecutorThread:
    """Runs an executor for the event loop that makes this. Its methods belong to that loop."""

    def __init__(self, executor: RequestExecutor) -> None:
        self.executor = executor
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._answers: deque[tuple[Answered, Reply]] = deque()
        self._woken = False  # a wake-up of the loop is under way
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
        self._thread.start()

    def run(self, errand: Errand, answered: Answered) -> None:
        """Execute a request after those before it; `answered` is called on the loop."""
        self._tasks.put(lambda: self._execute(errand, answered))

    def do(self, task: Callable[[], None]) -> None:
        """Call something on the executor's thread, in the order of the requests."""
        self._tasks.put(task)

    def forget(self, session: int) -> None:
        self._tasks.put(lambda: self.executor.forget(session))

    def close(self) -> None:
        """End the thread after the requests that it has."""
        self._tasks.put(None)
        self._thread.join(_END_S)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                logger.exception("a task of the executor failed")

    def _execute(self, errand: Errand, answered: Answered) -> None:
        request = IfrtRequest.FromString(errand.request)
        op_id = request.request_metadata.op_id

        def answer(response: Any | None, buffers: Mapping[int, Buffer]) -> None:
            if response is None:
                self._back(answered, NOBODY)
                return
            response.response_metadata.op_id = op_id
            if response.response_metadata.status.code:
                # Where there is a body, the client takes the request for done.
                _clear(response)
            self._back(answered, Reply(response.SerializeToString(), buffers))

        try:
            self.executor.execute(errand.session, request, errand.made, errand.buffers, answer)
        except Exception as exc:
            logger.exception("%s failed", request.WhichOneof("request"))
            fault = Fault(INTERNAL, f"{type(exc).__name__}: {exc}")
            answer(refused(op_id, fault), {})

    def _back(self, answered: Answered, reply: Reply) -> None:
        """Hand an answer to the loop. Any thread; one wake-up serves all answers of a moment."""
        self._answers.append((answered, reply))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop has ended: nobody waits any more
                self._answers.clear()

    def _deliver(self) -> None:
        self._woken = False  # before the first look, so that none is left behind
        while self._answers:
            answered, reply = self._answers.popleft()
            answered(reply)


def _clear(response: Any) -> None:
    if (body := response.WhichOneof("response")) is not None:
        response.ClearField(body)
