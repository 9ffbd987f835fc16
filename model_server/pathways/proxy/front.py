"""The front: takes each request of each client to its islands and brings the answers back.

Requests are noted in the client's table as they come, and leave for their islands as the order
says. All of it happens on one event loop, without a wait in between.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from model_server.pathways.islands.host import ArrayDelivery, Errand, Shipment
from model_server.pathways.islands.island import Island
from model_server.pathways.protocol.messages import IfrtRequest, IfrtResponse
from model_server.pathways.proxy.client_session import ClientSession
from model_server.pathways.scheduling.custom_call import brings_code, is_call
from model_server.pathways.scheduling.handles import (
    ALWAYS,
    INVALID,
    NOT_FOUND,
    UNIMPLEMENTED,
    Fault,
    IslandLife,
    Parts,
)
from model_server.pathways.scheduling.merging import Buffer, Gathering, Reply, described, part_of
from model_server.pathways.scheduling.options import add_options
from model_server.pathways.scheduling.order import Durations, GangOrder
from model_server.pathways.scheduling.refusals import granted, plain_layout, refused
from model_server.pathways.scheduling.routes import (
    Across,
    Ground,
    Split,
    StandIn,
    Whole,
    lost,
    route,
)
from model_server.pathways.scheduling.summary import How, Summary, answered_handles, summarise
from sax.errors import InvalidRequest, NotFound, Unavailable

logger = logging.getLogger(__name__)

_MOST_WAITING = 4096  # requests of a client; it is not read further meanwhile
_WATCH_EACH = 8  # works of a client that is alone
_EXECUTE, _METADATA = "loaded_executable_execute_request", "loaded_executable_metadata_request"
_DESTRUCT = "loaded_executable_destruct_request"
_NO_FUNCTIONS = (
    "functions of clients are not run beside the devices: start the proxy server with "
    "--sidecar_name=external, a sidecar beside each worker with --colocated_python, and the "
    "workers with --sidecar_address"
)
Finish = Callable[[Reply | Fault], None]


class _Work(NamedTuple):
    """A request that occupies devices."""

    program: int  # what to remember its duration by
    watched: int  # an array that is there when it is done; 0: none is known


class Front:
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
        self.ground = Ground({}, {})
        self._order = GangOrder()
        self.compile_options: Mapping[str, str] = {}  # for all programs, by name
        self.takes_functions = False  # pickled by clients, for the workers' sidecars
        self._buffer_bytes = buffer_bytes
        self._pumping = False
        self._transfers = secrets.randbits(40) << 20  # other fronts' are others
        self._shipping: dict[int, tuple[IslandLife, IslandLife]] = {}  # transfer -> from, to

    # Islands

    def island(self, number: int) -> Island:
        return self.islands.setdefault(number, Island(number))

    def survey(self) -> None:
        """Look at the islands again, after one came up or was lost."""
        devices = {
            device.id: island.number
            for island in self.islands.values()
            if island.description is not None
            for device in island.description.all_devices
        }
        up = {island.number: island.epoch for island in self.islands.values() if island.up}
        for number, epoch in self.ground.epochs.items():
            if up.get(number) != epoch:
                self._order.lost(number)
                self._strand(IslandLife(number, epoch))
        self.ground = Ground(devices, up)
        self._pump()

    def _strand(self, life: IslandLife) -> None:
        """Tell islands about the arrays that a lost one was sending them.

        Also about those that it said it had sent: they may have died with it on their way.
        """
        for transfer, (source, to) in list(self._shipping.items()):
            if life in (source, to):
                del self._shipping[transfer]
            if source == life:
                self.islands[to.island].astray(transfer, lost(source.island))

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
        """Raises Unavailable, as all else is to a client whose connection has ended."""
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
        try:
            request = IfrtRequest.FromString(raw)
        except DecodeError as exc:
            raise InvalidRequest(
                f"bytes that are no IfrtRequest ({exc}): use jaxlib's client"
            ) from exc
        session.requests += 1
        op_id = request.request_metadata.op_id
        try:
            summary = summarise(request)
        except InvalidRequest as error:
            session.answer(refused(op_id, Fault(INVALID, error.text)).SerializeToString())
            return
        try:
            if session.buffers.missing(summary.buffers):
                await session.buffers.wait(summary.buffers)
            buffers = session.buffers.take(summary.buffers)
        except NotFound as error:
            self._refuse(session, summary, Fault(NOT_FOUND, error.text))
            return
        self._take(session, summary, request, raw, buffers)
        while self._order.waiting(session.number) > _MOST_WAITING and not session.closed:
            await session.relief()

    # Requests

    def _take(
        self,
        session: ClientSession,
        summary: Summary,
        request: Any,
        raw: bytes,
        buffers: Mapping[int, Buffer],
    ) -> None:
        if summary.row.how is How.FRONT:
            self._greet(session, summary)
            return
        if self.compile_options and summary.row.programs and not is_call(request.compile_request):
            add_options(request.compile_request, self.compile_options)
            raw = request.SerializeToString()
        if summary.row.programs and not self.takes_functions and brings_code(request):
            self._refuse(session, summary, Fault(UNIMPLEMENTED, _NO_FUNCTIONS))
            return
        way = route(summary, session.table, self.ground)
        if isinstance(way, StandIn):
            request.get_default_layout_request.device_id = way.device
            raw, way = request.SerializeToString(), Whole(way.life)
        if isinstance(way, Fault) and summary.row.how is How.LIKE:
            session.answer(plain_layout(request, summary).SerializeToString())
        elif isinstance(way, Fault):
            self._refuse(session, summary, way)
        elif isinstance(way, Whole):
            touches = summary.reads + summary.makes
            executes = summary.kind == _EXECUTE
            keeps = partial(session.donations.kept, summary.reads) if executes else tuple
            errand = Errand(session.number, session.table.next_made(), raw, buffers, touches, keeps)
            self._whole(session, summary, way.life, errand)
        elif isinstance(way, Split):
            self._split(session, summary, request, raw, way)
        else:
            self._across(session, summary, request, way)

    def _greet(self, session: ClientSession, summary: Summary) -> None:
        """Answer the first request of a session: the devices of all islands."""
        known = [island.description for island in self._known()]
        if not known:
            self._refuse(session, summary, Fault(14, no_islands().text))
            return
        response = granted(summary, {})
        response.init_response.CopyFrom(described(known))
        response.init_response.session_id = session.number
        session.answer(response.SerializeToString())

    def _known(self) -> list[Island]:
        islands = sorted(self.islands.values(), key=lambda island: island.number)
        return [island for island in islands if island.description is not None]

    def _refuse(self, session: ClientSession, summary: Summary, fault: Fault) -> None:
        """Answer with a fault, which also becomes the value of all that the request would make."""
        session.table.note(summary.makes, fault)
        if summary.fetches:
            session.buffers.fail(summary.fetches, fault)
        session.table.drop(summary.destroys)
        session.answer(refused(summary.op_id, fault).SerializeToString())

    def _whole(
        self, session: ClientSession, summary: Summary, life: IslandLife, errand: Errand
    ) -> None:
        session.table.note(summary.makes, life)
        session.table.drop(summary.destroys)
        if summary.fetches:
            session.buffers.expect(summary.fetches)

        def finish(outcome: Reply | Fault) -> None:
            self._finish(session, summary, life, errand, outcome)

        if not summary.row.work:
            self._go(session, life, 0.0, errand, finish, looks=summary.row.looks)
            return
        program = summary.reads[0] if summary.reads else 0
        cost = self._durations.expected(session.number, program)
        watched = 0 if summary.counted else next(iter(summary.makes), 0)
        self._go(session, life, cost, errand, finish, _Work(program, watched))

    def _go(
        self,
        session: ClientSession,
        life: IslandLife,
        cost: float,
        errand: Errand,
        finish: Finish,
        work: _Work | None = None,
        looks: bool = False,
    ) -> None:
        """Queue an errand for an island's life; when it goes, that life may be over.

        looks: it only reads, and may go before what waits and touches other handles.
        """
        watching = False
        charged: int | None = None  # the life of the island whose window has its place

        def go() -> None:
            nonlocal watching, charged
            charged = self.ground.epochs.get(life.island)
            island = self.islands[life.island]
            if island.epoch != life.epoch:
                ended(lost(life.island, back=True))
                return
            watching = work is not None and self._watches(session, life, work)
            island.call(errand, ended)
            if work is not None and watching:
                self._watch(session, life, work, charged)

        def ended(outcome: Reply | Fault) -> None:
            if session.closed:
                return
            finish(outcome)
            session.relieve()
            if cost and not watching:
                self._finished(session, life.island, charged)

        if looks and self._order.passes(session.number, life.island, errand.touches):
            go()
            return
        self._order.submit(session.number, (life.island,), cost, go, errand.touches)
        self._pump()

    def _watches(self, session: ClientSession, life: IslandLife, work: _Work) -> bool:
        """Tell whether to keep a work's place in the window until its result is there.

        Answers come before the work is done. Where clients compete, all works are watched; where
        one is alone, now and then one is, so that a second client never finds a long queue.
        """
        session.works += 1
        often = self._order.competing(life.island) or session.works % _WATCH_EACH == 0
        return bool(work.watched) and often

    def _watch(
        self, session: ClientSession, life: IslandLife, work: _Work, charged: int | None
    ) -> None:
        """Ask when a work's first result is there, and give its place in the window back then."""
        sent_s = self._clock()
        request = IfrtRequest()
        request.check_value_ready_request.value_handles.append(work.watched)

        def ready(outcome: Reply | Fault) -> None:
            if session.closed:
                return
            number = session.number
            ended_s = self._clock()
            self._durations.measured(number, work.program, life.island, sent_s, ended_s)
            self._finished(session, life.island, charged)

        errand = Errand(session.number, 0, request.SerializeToString(), {}, (work.watched,))
        self.islands[life.island].call(errand, ready)

    def _finished(self, session: ClientSession, island: int, epoch: int | None) -> None:
        """Give back a work's place in the window, unless all were when that life ended."""
        if self.ground.epochs.get(island) == epoch:
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
        session: ClientSession,
        summary: Summary,
        life: IslandLife,
        errand: Errand,
        outcome: Reply | Fault,
    ) -> None:
        """Note what an answer brings and pass it on."""
        if isinstance(outcome, Fault):
            if summary.fetches:
                session.buffers.fail(summary.fetches, outcome)
            session.answer(refused(summary.op_id, outcome).SerializeToString())
            return
        for handle, data in outcome.buffers.items():
            session.buffers.fill(handle, data)
        if summary.fetches and summary.fetches not in outcome.buffers:
            session.buffers.fail(summary.fetches, _fault_of(outcome.response))
        if summary.counted:
            self._note_counted(session, summary, life, errand, outcome.response)
        if summary.kind == _METADATA:
            session.donations.note(summary.reads, IfrtResponse.FromString(outcome.response))
        session.answer(outcome.response)

    def _note_counted(
        self, session: ClientSession, summary: Summary, life: IslandLife, errand: Errand, raw: bytes
    ) -> None:
        """Note the handles that the worker chose, and a program to compile again."""
        body = getattr(IfrtResponse.FromString(raw), summary.response)
        handles = answered_handles(body, summary.row)
        if not summary.row.programs:
            session.table.note(handles, life)
        elif handles:
            session.table.note(handles, IslandLife(life.island, ALWAYS))
            self.islands[life.island].programs.note(handles[0], errand)

    def _split(
        self, session: ClientSession, summary: Summary, request: Any, raw: bytes, way: Split
    ) -> None:
        for island in self.islands.values():
            island.programs.drop(session.number, summary.destroys)
        if summary.kind == _DESTRUCT:
            session.donations.forget(summary.destroys)
        session.table.drop(summary.destroys)
        fault = None if summary.row.forgiving else way.fault
        made = session.table.next_made()
        if not way.parts:
            self._settle(session, summary, fault)
            return
        gathering = Gathering(len(way.parts), fault)
        for number, handles in way.parts.items():
            life = IslandLife(number, self.ground.epochs[number])
            part = part_of(request, summary, handles, raw)

            def finish(outcome: Reply | Fault, life: IslandLife = life) -> None:
                if gathering.answered(life, outcome):
                    self._gathered(session, summary, gathering, made)

            errand = Errand(session.number, made, part, {}, handles)
            self._go(session, life, 0.0, errand, finish, looks=summary.row.looks)

    def _settle(self, session: ClientSession, summary: Summary, fault: Fault | None) -> None:
        """Answer a request of whose handles none is on an island."""
        if fault is not None:
            session.answer(refused(summary.op_id, fault).SerializeToString())
            return
        session.answer(granted(summary, {}).SerializeToString())  # a future of 0 is ready

    def _gathered(
        self, session: ClientSession, summary: Summary, gathering: Gathering, made: int
    ) -> None:
        """Answer a request whose parts are all answered."""
        fault = gathering.fault
        if fault is not None and not (summary.row.forgiving and gathering.only_lost):
            session.answer(refused(summary.op_id, fault).SerializeToString())
            return
        handles: dict[str, int] = {}
        futures = gathering.handles(summary)
        # A future of the front's own, of those of the parts. jaxlib's client never asks for one of
        # a deletion: without need, none is kept here.
        if any(each for _, each in futures):
            made += len(futures) + 1  # beyond those of the workers
            session.table.note((made,), Parts(futures))
            handles = dict.fromkeys(summary.row.answers, made)
        session.answer(granted(summary, handles).SerializeToString())

    def _across(self, session: ClientSession, summary: Summary, request: Any, way: Across) -> None:
        """Copy arrays to another island, one by one and each in its turn on both.

        One that may be reused is freed there when the client drops its handle, not before.
        """
        body = request.copy_arrays_request
        results = summary.makes or tuple(
            range(made := session.table.next_made(), made + len(summary.reads))
        )
        session.table.note(results, way.to)
        for array, result, source in zip(summary.reads, results, way.sources, strict=True):
            if source.island == way.to.island:
                self._copy_within(session, request, array, result, way.to)
                continue
            self._transfers += 1
            arrival = ArrayDelivery(
                session.number, result, self._transfers, body.device_ids, body.memory_kind
            )
            self._submit_transfer(session, array, source, way.to, arrival)
        response = granted(summary, {})
        response.copy_arrays_response.array_handles.extend(results)
        session.answer(response.SerializeToString())

    def _copy_within(
        self, session: ClientSession, request: Any, array: int, result: int, life: IslandLife
    ) -> None:
        """Copy one of the arrays, which is on the island already."""
        part = type(request)()
        part.CopyFrom(request)
        body = part.copy_arrays_request
        del body.array_handles[:], body.result_handles[:]
        body.array_handles.append(array)
        body.result_handles.append(result)
        errand = Errand(session.number, 0, part.SerializeToString(), {}, (array, result))
        self._go(session, life, 0.0, errand, lambda outcome: None)

    def _submit_transfer(
        self,
        session: ClientSession,
        array: int,
        source: IslandLife,
        to: IslandLife,
        arrival: ArrayDelivery,
    ) -> None:
        def go() -> None:
            taking, giving = self.islands[to.island], self.islands[source.island]
            if not taking.up or taking.epoch != to.epoch:
                return  # the result is lost: its handle is of that life
            self._shipping[arrival.transfer] = (source, to)
            taking.expect(arrival, lambda: self._arrived(arrival.transfer))
            if not giving.up or giving.epoch != source.epoch:
                taking.astray(arrival.transfer, lost(source.island))
                return
            shipment = Shipment(session.number, array, arrival.transfer, taking.addresses)
            giving.ship(shipment, lambda fault: self._shipped(arrival.transfer, taking, fault))

        touches = (array, arrival.handle)
        self._order.submit(session.number, (source.island, to.island), 0.0, go, touches)
        self._pump()

    def _shipped(self, transfer: int, taking: Island, fault: Fault | None) -> None:
        if fault is not None:
            taking.astray(transfer, fault)

    def _arrived(self, transfer: int) -> None:
        self._shipping.pop(transfer, None)


def no_islands() -> Unavailable:
    return Unavailable("no island is up: start its workers, or wait until they are back")


def _fault_of(response: bytes) -> Fault:
    status = IfrtResponse.FromString(response).response_metadata.status
    return Fault(status.code or NOT_FOUND, status.message or "nothing was copied")
