"""The interface of a worker's executor, and the thread that runs requests on it in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from model_server.pathways.protocol import IfrtRequest
from model_server.pathways.scheduling.answers import (
    NOBODY,
    Answered,
    Buffer,
    IslandRequest,
    Reply,
    refused,
)
from model_server.pathways.scheduling.handles import INTERNAL, Fault
from model_server.pathways.worker.waiting import Task, WaitingThread

logger = logging.getLogger(__name__)

# IfrtResponse (None: another host of the island answers), filled host buffers by handle
Answer = Callable[[Any | None, Mapping[int, Buffer]], None]
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class TransferPart:
    """The shards of a transferred array that one host has."""

    kind: int  # of DTypeProto
    shape: tuple[int, ...]  # of the whole array
    division: bytes  # its OpSharding; b"" for a replicated array, and so for one on one device
    shards: Mapping[int, Buffer]  # by place among the devices of its sharding


class ComingArray(Protocol):
    """An array whose shards come from another island."""

    @property
    def complete(self) -> bool:
        """Tell whether it, or an error in its place, is there."""
        ...

    def arrive(self, part: TransferPart) -> None: ...

    def fail(self, fault: Fault) -> None: ...


class RequestExecutor(Protocol):
    """Executes requests on the local devices. Called by one thread, in order."""

    def describe(self) -> Any:
        """Return the InitResponse of this process."""
        ...

    def execute(
        self,
        session: int,
        request: Any,
        made: int,
        buffers: Mapping[int, Any],
        answer: Answer,
    ) -> None:
        """Start a request; `answer` is called once, at any time, from any thread."""
        ...

    def send(
        self, session: int, handle: int, deliver: Callable[[TransferPart | Fault], None]
    ) -> None:
        """Hand over the shards of an array that are here, once it is computed."""
        ...

    def receive(
        self, session: int, handle: int, device_ids: Sequence[int], memory_kind: str | None
    ) -> ComingArray:
        """Put an array that will arrive under a handle."""
        ...

    def forget(self, session: int) -> None:
        """Free everything of a session."""
        ...


class ExecutorThread:
    """Runs an executor for the event loop that makes this. Its methods belong to that loop."""

    def __init__(self, executor: RequestExecutor) -> None:
        self.executor = executor
        self._loop = asyncio.get_running_loop()
        self._answers: deque[tuple[Answered, Reply]] = deque()
        self._woken = False  # a wake-up of the loop is under way
        self._thread = WaitingThread("executor")

    def run(self, request: IslandRequest, answered: Answered) -> None:
        """Execute a request after those before it; `answered` is called on the loop."""
        self._thread.run(lambda: self._execute(request, answered))

    def do(self, task: Task) -> None:
        """Call something on the executor's thread, in the order of the requests."""
        self._thread.run(task)

    def forget(self, session: int) -> None:
        self._thread.run(lambda: self.executor.forget(session))

    def close(self) -> None:
        """End the thread after the requests that it has."""
        self._thread.end(_END_S)

    def _execute(self, request: IslandRequest, answered: Answered) -> None:
        asked = IfrtRequest.FromString(request.serialized)
        op_id = asked.request_metadata.op_id

        def answer(response: Any | None, buffers: Mapping[int, Buffer]) -> None:
            if response is None:
                self._back(answered, NOBODY)
                return
            response.response_metadata.op_id = op_id
            if response.response_metadata.status.code:
                _clear(response)  # with a body, the client would take the request for done
            self._back(answered, Reply(response.SerializeToString(), buffers))

        try:
            self.executor.execute(request.session, asked, request.made, request.buffers, answer)
        except Exception as exc:
            logger.exception("%s failed", asked.WhichOneof("request"))
            fault = Fault(INTERNAL, f"{type(exc).__name__}: {exc}")
            answer(refused(op_id, fault), {})

    def _back(self, answered: Answered, reply: Reply) -> None:
        """Hand an answer to the loop, from any thread; one wake-up may serve several answers."""
        self._answers.append((answered, reply))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop has ended: no caller waits
                self._answers.clear()

    def _deliver(self) -> None:
        self._woken = False  # before the first look, so that none is left behind
        while self._answers:
            answered, reply = self._answers.popleft()
            answered(reply)


def _clear(response: Any) -> None:
    if (body := response.WhichOneof("response")) is not None:
        response.ClearField(body)
