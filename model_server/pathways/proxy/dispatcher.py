"""The dispatcher: sends each request of each client to its islands and brings the answers back.

Requests are noted in the client's handle table as they come, and leave for their islands in the
order of `GangOrder`. Everything happens on one event loop, without a wait in between.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from model_server.pathways.protocol import IfrtRequest, IfrtResponse, parsed
from model_server.pathways.proxy.client_session import ClientSession
from model_server.pathways.proxy.island import ArrayCopies, ArrayDelivery, Island
from model_server.pathways.scheduling.answers import (
    Buffer,
    Gathering,
    IslandRequest,
    Reply,
    described,
    fault_in,
    granted,
    part_of,
    part_to_copy,
    plain_layout,
    refused,
)
from model_server.pathways.scheduling.custom_call import NO_FUNCTIONS, brings_code, is_call
from model_server.pathways.scheduling.handles import (
    ALWAYS,
    INVALID,
    NOT_FOUND,
    Fault,
    IslandIncarnation,
    Parts,
)
from model_server.pathways.scheduling.options import add_options
from model_server.pathways.scheduling.order import Durations, GangOrder
from model_server.pathways.scheduling.routes import (
    NO_ISLANDS,
    Across,
    Fallback,
    IslandTopology,
    Split,
    Whole,
    lost,
    route,
)
from model_server.pathways.scheduling.summary import How, Summary, answered_handles, summarise
from sax.errors import InvalidRequest, NotFound, Unavailable

_MOST_WAITING = 4096  # requests of a client; it is not read further meanwhile
_WATCH_EACH = 8  # device tasks of a client that is alone
_EXECUTE, _METADATA = "loaded_executable_execute_request", "loaded_executable_metadata_request"
_DESTRUCT = "loaded_executable_destruct_request"


class _Received(NamedTuple):
    """A client's request."""

    session: ClientSession
    summary: Summary
    body: Any  # IfrtRequest
    raw: bytes  # the same, serialized


class _Work(NamedTuple):
    """The part of a request that occupies devices."""

    cost: float  # expected seconds
    program: int  # what to remember its duration by
    watched: int  # an array that is there when it is done; 0: none is known


class Dispatcher:
    """Islands, clients and the order of their requests."""

    def __init__(
        self, *, buffer_bytes: int = 16 << 30, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """buffer_bytes: host buffers of one client that may wait here. clock: in seconds."""
        self._clock = clock
        self._durations = Durations()
        self.islands: dict[int, Island] = {}
        self.sessions: dict[int, ClientSession] = {}
        self.expected: set[int] = set()  # islands that there should be
        self.topology = IslandTopology({}, {})
        self._order = GangOrder()
        self.compile_options: Mapping[str, str] = {}  # for all programs, by name
        self.takes_functions = False  # pickled by clients, for the workers' sidecars
        self._buffer_bytes = buffer_bytes
        self._pumping = False
        self._copies = ArrayCopies(self.islands)

    # Islands

    def island(self, number: int) -> Island:
        return self.islands.setdefault(number, Island(number))

    def survey(self) -> None:
        """Read the state of the islands again, after one came up or was lost."""
        devices = {
            device.id: island.number
            for island in self.islands.values()
            if island.description is not None
            for device in island.description.all_devices
        }
        up = {island.number: island.epoch for island in self.islands.values() if island.up}
        for number, epoch in self.topology.epochs.items():
            if up.get(number) != epoch:
                self._order.lost(number)
                self._copies.lose(IslandIncarnation(number, epoch))
        self.topology = IslandTopology(devices, up)
        self._pump()

    # Clients

    def open(self, *, name: str = "", weight: float = 1.0) -> ClientSession:
        """Start a session. weight: its share of islands where clients compete."""
        number = secrets.randbits(62) | 1
        made = ClientSession(number, name=name, weight=weight, buffer_bytes=self._buffer_bytes)
        self.sessions[number] = made
        self._order.join(number, weight)
        return made

    def close(self, session: ClientSession) -> None:
        """Free everything of a session, here and on all islands. Idempotent."""
        if self.sessions.pop(session.number, None) is None:
            return
        session.close()
        self._order.leave(session.number)
        self._durations.forget(session.number)
        for island in self.islands.values():
            island.forget(session.number)
        self._pump()

    def session(self, number: int) -> ClientSession:
        """Raises Unavailable, as every call of a client whose connection has ended does."""
        found = self.sessions.get(number)
        if found is None:
            raise Unavailable(f"no session {number} here: it has ended; connect again")
        return found

    def waiting(self, session: int) -> int:
        """Return how many of a client's requests wait for their turn."""
        return self._order.waiting(session)

    def pause(self, session: int, paused: bool) -> None:
        """Hold back a client's requests, or let them go on."""
        if session in self.sessions:
            self.sessions[session].paused = paused
        self._order.pause(session, paused)
        self._pump()

    async def serve(self, session: ClientSession, raw: bytes) -> None:
        """Take one request. Raises InvalidRequest if it cannot even be answered."""
        request = parsed(raw, IfrtRequest)
        session.requests += 1
        op_id = request.request_metadata.op_id
        try:
            summary = summarise(request)
        except InvalidRequest as error:
            session.answer(refused(op_id, Fault(INVALID, error.text)).SerializeToString())
            return
        received = _Received(session, summary, request, raw)
        try:
            await session.buffers.wait(summary.buffers)
            buffers = session.buffers.take(summary.buffers)
        except NotFound as error:
            self._refuse(received, Fault(NOT_FOUND, error.text))
            return
        self._take(received, buffers)
        while self._order.waiting(session.number) > _MOST_WAITING and not session.closed:
            await session.relief()

    # Requests

    def _take(self, received: _Received, buffers: Mapping[int, Buffer]) -> None:
        session, summary, body, _ = received
        if summary.row.how is How.HERE:
            return self._greet(received)
        if self.compile_options and summary.row.programs and not is_call(body.compile_request):
            add_options(body.compile_request, self.compile_options)
            received = received._replace(raw=body.SerializeToString())
        if summary.row.programs and not self.takes_functions and brings_code(body):
            return self._refuse(received, NO_FUNCTIONS)
        way = route(summary, session.table, self.topology)
        if isinstance(way, Fallback):
            body.get_default_layout_request.device_id = way.device
            received, way = received._replace(raw=body.SerializeToString()), Whole(way.target)
        if isinstance(way, Fault) and summary.row.how is How.LIKE:
            session.answer(plain_layout(body, summary).SerializeToString())
        elif isinstance(way, Fault):
            self._refuse(received, way)
        elif isinstance(way, Whole):
            self._whole(received, way.target, buffers)
        elif isinstance(way, Split):
            self._split(received, way)
        else:
            self._across(received, way)

    def _greet(self, received: _Received) -> None:
        """Answer the first request of a session: the devices of all islands."""
        found = (self.islands[number].description for number in sorted(self.islands))
        known = [each for each in found if each is not None]
        if not known:
            return self._refuse(received, NO_ISLANDS)
        response = granted(received.summary, {})
        response.init_response.CopyFrom(described(known))
        response.init_response.session_id = received.session.number
        received.session.answer(response.SerializeToString())

    def _refuse(self, received: _Received, fault: Fault) -> None:
        """Answer with a fault, which also becomes the value of all that the request would make."""
        session, summary, _, _ = received
        session.table.note(summary.makes, fault)
        if summary.fetches:
            session.buffers.fail(summary.fetches, fault)
        session.table.drop(summary.destroys)
        session.answer(refused(summary.op_id, fault).SerializeToString())

    def _whole(
        self, received: _Received, target: IslandIncarnation, buffers: Mapping[int, Buffer]
    ) -> None:
        """Send a request to one island as it is."""
        session, summary, _, raw = received
        touches = summary.reads + summary.makes
        keeps = partial(session.donations.kept, summary.reads)
        request = IslandRequest(
            session.number,
            session.table.next_made(),
            raw,
            buffers,
            touches,
            keeps if summary.kind == _EXECUTE else tuple,
        )
        session.table.note(summary.makes, target)
        session.table.drop(summary.destroys)
        if summary.fetches:
            session.buffers.expect(summary.fetches)

        finish = partial(self._finish, received, target, request)
        self._go(session, target, request, finish, self._work(received), looks=summary.row.looks)

    def _work(self, received: _Received) -> _Work | None:
        session, summary, _, _ = received
        if not summary.row.work:
            return None
        program = summary.reads[0] if summary.reads else 0
        cost = self._durations.expected(session.number, program)
        return _Work(cost, program, 0 if summary.counted else next(iter(summary.makes), 0))

    def _go(
        self,
        session: ClientSession,
        target: IslandIncarnation,
        request: IslandRequest,
        finish: Callable[[Reply | Fault], None],
        work: _Work | None = None,
        looks: bool = False,
    ) -> None:
        """Queue a request for an incarnation of an island, which may be over when it is sent.

        looks: it only reads, and may go before what waits and touches other handles.
        """
        watching = False
        charged: int | None = None  # epoch of the island in whose window it has its place

        def go() -> None:
            nonlocal watching, charged
            charged = self.topology.epochs.get(target.island)
            island = self.islands[target.island]
            if island.epoch != target.epoch:
                ended(lost(target.island, back=True))
                return
            watching = work is not None and self._watches(session, target, work)
            island.call(request, ended)
            if work is not None and watching:
                self._watch(session, target, work, charged)

        def ended(outcome: Reply | Fault) -> None:
            if session.closed:
                return
            finish(outcome)
            session.relieve()
            if work is not None and work.cost and not watching:
                self._finished(session, target.island, charged)

        if looks and self._order.passes(session.number, target.island, request.touches):
            go()
            return
        cost = 0.0 if work is None else work.cost
        self._order.submit(session.number, (target.island,), cost, go, request.touches)
        self._pump()

    def _watches(self, session: ClientSession, target: IslandIncarnation, work: _Work) -> bool:
        """Tell whether a request keeps its place in the window until its result is there.

        Answers come before the devices are done. Of a client that is alone, one in a few is
        watched, so that a second client never finds a long queue.
        """
        session.works += 1
        often = self._order.competing(target.island) or session.works % _WATCH_EACH == 0
        return bool(work.watched) and often

    def _watch(
        self, session: ClientSession, target: IslandIncarnation, work: _Work, charged: int | None
    ) -> None:
        """Ask when the first result is there, and give its place in the window back then."""
        sent_s = self._clock()
        question = IfrtRequest()
        question.check_value_ready_request.value_handles.append(work.watched)

        def ready(outcome: Reply | Fault) -> None:
            if session.closed:
                return
            number, ended_s = session.number, self._clock()
            self._durations.measured(number, work.program, target.island, sent_s, ended_s)
            self._finished(session, target.island, charged)

        raw = question.SerializeToString()
        request = IslandRequest(session.number, 0, raw, {}, (work.watched,))
        self.islands[target.island].call(request, ready)

    def _finished(self, session: ClientSession, island: int, epoch: int | None) -> None:
        """Give back a place in the window, unless all were when that incarnation ended."""
        if self.topology.epochs.get(island) == epoch:
            self._order.finished(session.number, island)
        self._pump()

    def _pump(self) -> None:
        """Send what may go. Answers that come at once do not start a second pump."""
        if self._pumping:
            return
        self._pumping = True
        try:
            for go in self._order.dispatch():
                go()
        finally:
            self._pumping = False

    def _finish(
        self,
        received: _Received,
        target: IslandIncarnation,
        request: IslandRequest,
        outcome: Reply | Fault,
    ) -> None:
        """Note the handles and host buffers of an answer and pass it on."""
        session, summary, _, _ = received
        if isinstance(outcome, Fault):
            if summary.fetches:
                session.buffers.fail(summary.fetches, outcome)
            session.answer(refused(summary.op_id, outcome).SerializeToString())
            return
        for handle, data in outcome.buffers.items():
            session.buffers.fill(handle, data)
        if summary.fetches and summary.fetches not in outcome.buffers:
            session.buffers.fail(summary.fetches, fault_in(outcome.response))
        if summary.counted:
            self._note_counted(received, target, request, outcome.response)
        if summary.kind == _METADATA:
            session.donations.note(summary.reads, IfrtResponse.FromString(outcome.response))
        session.answer(outcome.response)

    def _note_counted(
        self, received: _Received, target: IslandIncarnation, request: IslandRequest, raw: bytes
    ) -> None:
        """Note the handles that the worker chose, and a program to compile again."""
        session, summary, _, _ = received
        answer = IfrtResponse.FromString(raw)
        handles = answered_handles(getattr(answer, summary.response), summary.row)
        if not summary.row.programs:
            session.table.note(handles, target)
        elif handles:
            session.table.note(handles, IslandIncarnation(target.island, ALWAYS))
            self.islands[target.island].programs.note(handles[0], request)

    def _split(self, received: _Received, way: Split) -> None:
        """Send parts of a request to the islands of its handles."""
        session, summary, body, raw = received
        for island in self.islands.values():
            island.programs.drop(session.number, summary.destroys)
        if summary.kind == _DESTRUCT:
            session.donations.forget(summary.destroys)
        session.table.drop(summary.destroys)
        gathering = Gathering(len(way.parts), None if summary.row.forgiving else way.fault)
        made = session.table.next_made()
        if not way.parts:
            return self._gathered(received, gathering, made)
        for number, handles in way.parts.items():
            target = IslandIncarnation(number, self.topology.epochs[number])

            def finish(outcome: Reply | Fault, target: IslandIncarnation = target) -> None:
                if gathering.answered(target, outcome):
                    self._gathered(received, gathering, made)

            part = part_of(body, summary, handles, raw)
            request = IslandRequest(session.number, made, part, {}, handles)
            self._go(session, target, request, finish, looks=summary.row.looks)

    def _gathered(self, received: _Received, gathering: Gathering, made: int) -> None:
        """Answer a request whose parts are all answered, or that has none."""
        session, summary, _, _ = received
        fault = gathering.fault
        if fault is not None and not (summary.row.forgiving and gathering.only_lost):
            session.answer(refused(summary.op_id, fault).SerializeToString())
            return
        handles: dict[str, int] = {}  # none: a future of 0 is ready
        futures = gathering.handles(summary)
        # One future stands for those of the parts. jaxlib's client never asks for one of a
        # deletion: without need, none is kept here.
        if any(each for _, each in futures):
            made += len(futures) + 1  # beyond those of the workers
            session.table.note((made,), Parts(futures))
            handles = dict.fromkeys(summary.row.answers, made)
        session.answer(granted(summary, handles).SerializeToString())

    def _across(self, received: _Received, way: Across) -> None:
        """Copy arrays to another island, one by one and each in its turn on both.

        One that may be reused is freed there when the client drops its handle, not before.
        """
        session, summary, request, _ = received
        asked = request.copy_arrays_request
        results = summary.makes or tuple(
            range(made := session.table.next_made(), made + len(summary.reads))
        )
        session.table.note(results, way.to)
        for array, result, source in zip(summary.reads, results, way.sources, strict=True):
            if source.island == way.to.island:
                part = part_to_copy(request, array, result)
                within = IslandRequest(session.number, 0, part, {}, (array, result))
                self._go(session, way.to, within, lambda outcome: None)
                continue
            arrival = ArrayDelivery(
                session.number, result, self._copies.number(), asked.device_ids, asked.memory_kind
            )
            go = partial(self._copies.start, array, source, way.to, arrival)
            islands = (source.island, way.to.island)
            self._order.submit(session.number, islands, 0.0, go, (array, result))
            self._pump()
        response = granted(summary, {})
        response.copy_arrays_response.array_handles.extend(results)
        session.answer(response.SerializeToString())
