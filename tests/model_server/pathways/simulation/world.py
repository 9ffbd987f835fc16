"""A deployment on a virtual clock: the real dispatcher, islands and order; hosts that take time.

Hosts do arithmetic at once, but answer when a device would: it runs one program after the other.
Nothing here depends on threads, sockets or real time, so every run can be repeated.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from model_server.pathways.protocol import IfrtRequest, IfrtResponse
from model_server.pathways.proxy.client_session import ClientSession
from model_server.pathways.proxy.dispatcher import Dispatcher
from model_server.pathways.proxy.island import (
    Answered,
    ArrayDelivery,
    IslandRequest,
    Shipment,
    Shipped,
)
from model_server.pathways.scheduling.answers import NOBODY, Reply
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.scheduling.summary import summarise
from tests.model_server.pathways import requests
from tests.model_server.pathways.arithmetic import ArithmeticExecutor, Coming

_HOP_S = 0.0002
_SEND_S = 0.01  # for an array to another island
_WAITS = ("check_value_ready_request", "copy_to_host_buffer_request")


class VirtualClock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time_s: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(time_s, self.now_s), self._count, event))

    def run(self, until_s: float = float("inf")) -> None:
        """Let everything happen that happens until then."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        if until_s != float("inf"):
            self.now_s = until_s


class VirtualHost:
    """A host whose device takes its time."""

    def __init__(self, world: World, address: str, devices: list[int], holds: bool) -> None:
        self.address = address
        self.executor = ArithmeticExecutor(devices, holds=holds)
        self.description: Any = self.executor.describe()
        self.alive = True
        self._world = world
        self._free_s = 0.0
        self._ready_s: dict[tuple[int, int], float] = {}
        self._expected: dict[int, tuple[ArrayDelivery, Coming, Callable[[], None]]] = {}
        self._early: dict[int, Any] = {}

    def run(self, request: IslandRequest, answered: Answered) -> None:
        self._later(lambda: self._run(request, answered))

    def ship(self, shipment: Shipment, shipped: Shipped) -> None:
        self._later(lambda: self._ship(shipment, shipped))

    def expect(self, arrival: ArrayDelivery, arrived: Callable[[], None]) -> None:
        def expect() -> None:
            array = self.executor.receive(arrival.session, arrival.handle, arrival.devices, None)
            self._expected[arrival.transfer] = (arrival, array, arrived)
            if (part := self._early.pop(arrival.transfer, None)) is not None:
                self.take(arrival.transfer, part)

        self._later(expect)

    def fail_transfer(self, transfer: int, fault: Fault) -> None:
        self._later(lambda: self.take(transfer, fault))

    def forget(self, session: int) -> None:
        self._later(lambda: self.executor.forget(session))

    def close(self) -> None:
        self.alive = False

    def take(self, transfer: int, part: Any) -> None:
        """Take the part that another host sends, or the fault that the dispatcher sends instead."""
        if transfer not in self._expected:
            self._early[transfer] = part
            return
        _, array, arrived = self._expected.pop(transfer)
        if isinstance(part, Fault):
            array.fail(part)
        else:
            array.arrive(part)
        self._later(arrived)

    def _later(self, event: Callable[[], None], at_s: float = 0.0) -> None:
        """Let something happen one hop on; not at all on a host that is lost by then."""

        def happen() -> None:
            if self.alive:
                event()

        self._world.clock.at(max(at_s, self._world.clock.now_s) + _HOP_S, happen)

    def _run(self, request: IslandRequest, answered: Answered) -> None:
        asked = IfrtRequest.FromString(request.serialized)
        summary = summarise(asked)
        done_s = self._world.clock.now_s
        needed = [self._ready_s.get((request.session, handle), 0.0) for handle in summary.reads]
        if summary.kind == "loaded_executable_execute_request":
            self._free_s = max([self._free_s, done_s, *needed]) + self._world.program_s
            for handle in summary.makes:
                self._ready_s[request.session, handle] = self._free_s
        elif summary.kind in _WAITS:
            done_s = max([done_s, *needed])

        def answer(response: Any, filled: Mapping[int, bytes]) -> None:
            reply = NOBODY if response is None else Reply(_bare(response, summary.op_id), filled)
            self._later(lambda: answered(reply), done_s)

        self.executor.execute(
            request.session,
            asked,
            request.made,
            request.buffers,
            answer,  # type: ignore[arg-type]
        )

    def _send(self, host: VirtualHost, transfer: int, part: Any) -> None:
        """Take a time for it, as large arrays do: what has not left is lost with this host."""
        self._later(
            lambda: host._later(lambda: host.take(transfer, part)),
            self._world.clock.now_s + _SEND_S,
        )

    def _ship(self, shipment: Shipment, shipped: Shipped) -> None:
        ready_s = self._ready_s.get((shipment.session, shipment.array), 0.0)

        def deliver(part: Any) -> None:
            if self.executor.holds:
                for address in shipment.addresses:
                    host = self._world.hosts[address]
                    self._send(host, shipment.transfer, part)
            shipped(None)

        # The array is taken now, whatever becomes of its handle until it is computed.
        self.executor.send(
            shipment.session,
            shipment.array,
            lambda part: self._later(lambda: deliver(part), ready_s),
        )


def _bare(response: Any, op_id: int) -> bytes:
    response.response_metadata.op_id = op_id
    if response.response_metadata.status.code:
        response.ClearField(response.WhichOneof("response"))
    return response.SerializeToString()


class World:
    """A dispatcher and islands of two devices each."""

    def __init__(self, islands: int = 2, hosts: int = 1, program_s: float = 0.01) -> None:
        self.clock = VirtualClock()
        self.program_s = program_s
        self.dispatcher = Dispatcher(clock=lambda: self.clock.now_s)
        self.hosts: dict[str, VirtualHost] = {}
        self.up: dict[int, list[VirtualHost]] = {}
        self._per_island = hosts
        self._incarnations = 0
        for number in range(islands):
            self.start(number)

    def start(self, number: int) -> None:
        """Start an incarnation of an island."""
        self._incarnations += 1
        devices = [2 * number, 2 * number + 1]
        made = [
            VirtualHost(
                self,
                f"island {number}, incarnation {self._incarnations}, host {host}",
                devices,
                not host,
            )
            for host in range(self._per_island)
        ]
        self.hosts |= {host.address: host for host in made}
        self.up[number] = made
        self.dispatcher.island(number).begin(made)
        self.dispatcher.survey()

    def lose(self, number: int) -> None:
        """Lose an island."""
        self.up.pop(number, None)
        self.dispatcher.island(number).end("the story says so")
        self.dispatcher.survey()


class VirtualClient:
    """A client that never waits: answers are collected as they come."""

    def __init__(self, world: World, weight: float = 1.0) -> None:
        self.session: ClientSession = world.dispatcher.open(weight=weight)
        self.answers: dict[int, Any] = {}
        self.asked = self._handle = 0
        self._dispatcher = world.dispatcher

    def send(self, request: Any) -> int:
        self.asked += 1
        request.request_metadata.op_id = self.asked
        _run(self._dispatcher.serve(self.session, request.SerializeToString()))
        return self.asked

    def collect(self) -> None:
        """Take the answers that are there; each op has one at most."""
        for raw in self.session.ready():
            response = IfrtResponse.FromString(raw)
            op_id = response.response_metadata.op_id
            assert op_id not in self.answers, "answered twice"
            self.answers[op_id] = response

    def handle(self) -> int:
        self._handle += 1
        return self._handle

    def put(self, value: int, device: int) -> int:
        array, buffer = self.handle(), self.handle()
        self.session.buffers.store(buffer, np.int32(value).tobytes())
        self.send(requests.put(array, device, buffer))
        return array

    def execute(self, program: int, *arguments: int) -> int:
        result = self.handle()
        self.send(requests.execute(program, arguments, [result]))
        return result

    def compile(self, device: int) -> int:
        """Send a request to compile; returns its op."""
        return self.send(requests.request("compile", compile_options=requests.options([device])))

    def copy(self, array: int, device: int) -> int:
        result = self.handle()
        self.send(
            requests.request(
                "copy_arrays", array_handles=[array], device_ids=[device], result_handles=[result]
            )
        )
        return result

    def fetch(self, array: int) -> tuple[int, int]:
        """Ask for an array; returns the op and the host buffer."""
        buffer = self.handle()
        request = requests.request(
            "copy_to_host_buffer", array_handle=array, host_buffer_handle=buffer
        )
        return self.send(request), buffer

    def fetched(self, op_id: int, buffer: int) -> int | Fault:
        """Return what a fetch brought."""
        status = self.answers[op_id].response_metadata.status
        if status.code:
            return Fault(status.code, status.message)
        return int(np.frombuffer(self.session.buffers.take([buffer])[buffer], np.int32)[0])


def _run(step: Coroutine[Any, Any, None]) -> None:
    try:
        step.send(None)
    except StopIteration:
        return
    raise AssertionError("a request waited for something")
