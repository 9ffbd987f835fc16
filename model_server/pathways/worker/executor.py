"""Carries out the requests of all sessions on this process's devices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import jax

from model_server.pathways.protocol.messages import RESPONSES, IfrtResponse
from model_server.pathways.scheduling.answers import refused
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.worker.array_requests import ArrayRequests
from model_server.pathways.worker.arrays import Arrays
from model_server.pathways.worker.calls import Calls, Python, Reader
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.program_requests import ProgramRequests, close_program
from model_server.pathways.worker.shardings import Shardings
from model_server.pathways.worker.statuses import (
    Poisoned,
    RequestError,
    UnknownHandle,
    WrongRequest,
    fault_of,
    not_offered,
)
from model_server.pathways.worker.transfers import Receiving, TransferPart, packed
from model_server.pathways.worker.values import (
    Buffers,
    ComingValues,
    Elsewhere,
    HostCopy,
    Later,
    NotHere,
    Session,
    Strings,
)
from model_server.pathways.worker.waiting import WaitingThread

log = logging.getLogger(__name__)

# Takes the response, or None where this host of an island has no part in it, and host buffers.
Answer = Callable[[Any | None, Buffers], None]
_COMPILE = "compile_request"
_COMPILERS = 2  # programs that are compiled at once


class Executor:
    """One per process. `execute`, `send`, `receive` and `forget` are called by one thread."""

    def __init__(
        self,
        devices: IslandDevices,
        compile_options: Mapping[str, str] = MappingProxyType({}),
        reader: Reader | None = None,
        python: Python | None = None,
    ) -> None:
        """compile_options: by name, for all programs that do not set them.

        reader: of weights for clients. python: runs functions of clients.
        """
        self._devices = devices
        shardings = Shardings(devices)
        self._arrays = Arrays(devices, shardings)
        self._calls = Calls(devices, self._arrays, reader, python)
        self._sessions: dict[int, Session] = {}
        self._waiting: dict[int, WaitingThread] = {}
        self._compiling = ThreadPoolExecutor(_COMPILERS, thread_name_prefix="compile")
        self._kinds = _offered(
            ArrayRequests(self._arrays),
            ProgramRequests(devices, shardings, self._arrays, self._calls, compile_options),
        )

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of requests that are carried out; others are refused in words."""
        return frozenset(self._kinds)

    def describe(self) -> Any:
        """Return the InitResponse of a client that has these devices only, without a session."""
        return self._devices.described()

    def execute(
        self, session: int, request: Any, made: int, buffers: Buffers, answer: Answer
    ) -> None:
        """Begin one request; its answer may come at once, or later from another thread.

        made: the first of the handles that this request may give out.
        """
        kind = request.WhichOneof("request") or ""
        response = IfrtResponse()
        response.response_metadata.op_id = op_id = request.request_metadata.op_id
        try:
            if (carry_out := self._kinds.get(kind)) is None:
                raise not_offered(kind)
            told = getattr(response, RESPONSES[kind])
            told.SetInParent()
            of = self._session(session)
            later = carry_out(of, getattr(request, kind), told, made, buffers)
        except NotHere:
            answer(None, {})
        except Exception as exc:  # the edge: every request gets an answer
            answer(_failed(kind, op_id, exc), {})
        else:
            if later is None:
                answer(response, {})
            else:
                self._finish(session, kind, later, response, answer)

    def _finish(self, session: int, kind: str, later: Later, response: Any, answer: Answer) -> None:
        def finish() -> None:
            try:
                buffers = later()
            except NotHere:
                answer(None, {})
            except BaseException as exc:
                answer(_failed(kind, response.response_metadata.op_id, exc), {})
            else:
                answer(response, buffers or {})

        if kind == _COMPILE:
            self._compiling.submit(finish)
            return
        waits = self._waits(session)
        if isinstance(later, ComingValues):  # what comes must not hold up what is there
            later.then(lambda: waits.run(finish))
        else:
            waits.run(finish)

    def _session(self, number: int) -> Session:
        if number not in self._sessions:
            self._sessions[number] = Session(number)
        return self._sessions[number]

    def _waits(self, session: int) -> WaitingThread:
        if session not in self._waiting:
            self._waiting[session] = WaitingThread(f"session {session}")
        return self._waiting[session]

    def forget(self, session: int) -> None:
        """Free all that a session holds."""
        if (of := self._sessions.pop(session, None)) is not None:
            of.ended.set()
            for program in of.programs.values():
                close_program(program)
            self._calls.forget(session)
        if (waiting := self._waiting.pop(session, None)) is not None:
            waiting.end()

    # Between islands

    def send(
        self, session: int, handle: int, deliver: Callable[[TransferPart | Fault], None]
    ) -> None:
        """Hand over the shards of an array that are here, when it is ready, on another thread."""
        of = self._session(session)
        try:
            value = of.value(handle)
        except UnknownHandle as exc:
            value = exc.fault
        if isinstance(value, Strings):
            value = WrongRequest("a string goes to no other island").fault
        if isinstance(value, Fault):
            deliver(value)
        elif not isinstance(value, Elsewhere):
            fetch = of.fetching(handle)
            self._waits(session).run(lambda: deliver(self._packed(value, fetch)))

    def _packed(self, array: jax.Array, fetch: HostCopy) -> TransferPart | Fault:
        with fetch:
            try:
                return packed(array, self._arrays)
            except Exception as exc:
                return fault_of(exc)

    def receive(
        self, session: int, handle: int, device_ids: Sequence[int], memory_kind: str | None
    ) -> Receiving:
        """Store what will arrive under a handle; what needs it waits. Raises WrongRequest."""
        receiving = Receiving(self._arrays, self._devices.devices(device_ids), memory_kind)
        self._session(session).arrays[handle] = receiving.value
        return receiving


def _failed(kind: str, op_id: int, exc: BaseException) -> Any:
    """Return the IfrtResponse with the error."""
    if not isinstance(exc, RequestError | Poisoned):
        log.warning("%s failed: %s", kind, exc)
    return refused(op_id, fault_of(exc))


def _offered(*rooms: Any) -> Mapping[str, Callable[..., Later | None]]:
    """Return what carries out each kind of request that is offered."""
    names = {kind: kind.removesuffix("_request") for kind in RESPONSES}
    return {
        kind: getattr(room, name)
        for kind, name in names.items()
        for room in rooms
        if hasattr(room, name)
    }
