"""The reconciler: the loop that brings the servers to the wanted state.

Polls every joined server for its status about once a second, drops silent ones, and carries out the
planner's actions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from admin_server.assignment.plan import CellActions, plan_actions
from admin_server.assignment.seen import Action, LoadAction, Seen, UnloadAction, UpdateAcls
from admin_server.assignment.servers import Servers
from admin_server.cell.modelets import Modelets, is_lasting
from admin_server.cell.scaler import Scaler
from admin_server.events import CellEvents
from admin_server.ledger.state import CellState
from sax.errors import NotLeading, SaxError
from sax.need import Need
from sax.types import ServerInfo

_log = logging.getLogger(__name__)
# Many servers wake the loop many times a second: one plan covers all of it.
_GAP_S = 0.05
_GAP_OF_ROUND = 4.0  # rounds leave four fifths of the event loop to everything else
_VERBS = {LoadAction: "load", UnloadAction: "unload", UpdateAcls: "update of the ACLs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Intervals of the loop, in seconds."""

    poll_s: float = 1.0  # between two GetStatus calls to one server
    silence_s: float = 10.0  # after which a silent server is dropped
    settle_s: float = 3.0  # grace after a start, for servers to find the new admin


class Reconciler:
    """Lives on the event loop.

    `on_plan` is called with every plan before it is carried out, `on_refused` with the address when
    a server already obeys an admin server of a later term.
    """

    def __init__(
        self,
        modelets: Modelets,
        wanted: Callable[[], CellState],
        on_plan: Callable[[CellActions, Seen], None],
        scaler: Scaler,
        clock: Callable[[], float],
        *,
        on_refused: Callable[[str, NotLeading], object],
        timing: Timing,
        jitter: random.Random,
        events: CellEvents | None = None,
    ) -> None:
        self._modelets = modelets
        self._wanted = wanted
        self._on_plan = on_plan
        self._scaler = scaler
        self._clock = clock
        self._on_refused = on_refused
        self._timing = timing
        self._events = events or CellEvents(clock)
        self._servers = Servers(silence_s=timing.silence_s, jitter=jitter)
        # A cell that already has models waits for their servers before moving anything, unless it
        # is told who they are.
        self._acts_at_s = clock() + (timing.settle_s if wanted().models else 0.0)
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._hurries: dict[str, asyncio.Event] = {}  # to poll a server at once
        self._calls: dict[str, set[asyncio.Task[None]]] = {}
        self._hang_ups: set[asyncio.Task[None]] = set()
        self._stir = asyncio.Event()
        self._plan: CellActions | None = None
        self._retired: frozenset[str] = frozenset()  # tags of machines that are gone
        self._jitter = jitter
        self.rounds: deque[float] = deque(maxlen=1000)  # duration of the last ones, in seconds
        self.loads = self.unloads = self.failed_actions = 0  # since the start

    def expects(self, info: ServerInfo) -> bool:
        """True if a join of the server is news: of no start that has joined or left."""
        left = self._servers.has_left(info.address, info.incarnation)
        return not left and not self._servers.knows(info) and not self._is_retired(info)

    def has(self, address: str) -> bool:
        return address in self._servers

    def join(self, info: ServerInfo) -> None:
        """A server joined or sent a heartbeat; a new one is polled at once."""
        if self._servers.has_left(info.address, info.incarnation):
            return  # sent before it said that it leaves
        if self._is_retired(info) and not self._servers.knows(info):
            return
        new = self._servers.join(info, self._clock())
        if new:
            _log.info("model server %s joined (incarnation %s)", info.address, info.incarnation)
            self._events.note("joined", f"{info.address} joined", server=info.address)
            self._drop_calls(info.address)
        self._start_poll(info.address)
        if not new:  # the poll wakes with what a new one holds: a round before would delay the next
            self.wake()

    def leave(self, address: str, incarnation: str) -> None:
        """A server shuts down; no-op unless this start of it is joined."""
        if self._servers.leave(address, incarnation, self._clock()):
            _log.info("model server %s is shutting down", address)
            self._events.note("left", f"{address} is shutting down", server=address)
            self._forget(address)
            self.wake()

    def retire(self, tags: frozenset[str]) -> None:
        """Machines with one of these tags are gone: drop their servers that hold nothing.

        Those that hold a model serve until they leave; none joins anew, until the tag is taken out.
        """
        self._retired = tags
        for address in self._servers.drop_idle(tags, self._clock()):
            _log.info("model server %s was dropped: its machines are gone", address)
            self._events.note("left", f"{address} was dropped with its machines", server=address)
            self._forget(address)
            self.wake()

    def _is_retired(self, info: ServerInfo) -> bool:
        return not self._retired.isdisjoint(info.tags)

    def restore(self, infos: Sequence[ServerInfo]) -> None:
        """Take over these servers, all there were, without waiting for them to join; any of them
        may hold any model."""
        self._servers.restore(infos, self._wanted().models, self._clock())
        # Silent servers are awaited by name, so no general pause is needed.
        self._acts_at_s = self._clock()
        for info in infos:
            self._start_poll(info.address)
        self.wake()

    def infos(self) -> tuple[ServerInfo, ...]:
        return self._servers.infos()

    @property
    def acting(self) -> bool:
        """False while a restored cell still waits for servers to find it."""
        return self._clock() >= self._acts_at_s

    def wake(self) -> None:
        """Plan again soon: something changed."""
        self._stir.set()

    async def run(self) -> None:
        while True:
            self._stir.clear()
            self._step()
            await asyncio.sleep(max(_GAP_S, _GAP_OF_ROUND * self.rounds[-1]))
            try:
                async with asyncio.timeout(self._timing.poll_s):
                    await self._stir.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Close the connections to all servers; loads in progress there continue."""
        addresses = list(self._polls)
        for address in addresses:
            self._forget(address)
        await asyncio.gather(*self._hang_ups)

    def _step(self) -> None:
        now = self._clock()
        for address in self._servers.prune(now):
            _log.warning("model server %s fell silent and was dropped", address)
            self._events.note("dropped", f"{address} fell silent", server=address)
            self._forget(address)
        wanted = self._wanted()
        self._servers.forget_failures(wanted)
        seen = self._servers.view()
        wanted = self._scaler.scaled(wanted, seen, now)
        self._plan = plan = plan_actions(wanted, seen, now, acting=self.acting, before=self._plan)
        self._on_plan(plan, seen)
        for action in plan.actions:
            self._servers.begin(action)
            self._start_call(action)
        self.rounds.append(self._clock() - now)

    def _start_poll(self, address: str) -> None:
        if address not in self._polls:
            self._polls[address] = asyncio.create_task(self._poll(address))

    def _start_call(self, action: Action) -> None:
        calls = self._calls.setdefault(action.address, set())
        task = asyncio.create_task(self._carry_out(action))
        calls.add(task)
        task.add_done_callback(calls.discard)

    async def _carry_out(self, action: Action) -> None:
        verb = _VERBS[type(action)]
        _log.info("%s %s on %s", verb, action.model_id, action.address)
        error: str | None = None
        need: Need | None = None
        lasting = False
        try:
            await self._modelets.carry_out(action)
        except SaxError as exc:
            self._note_refusal(action.address, exc)
            error, need, lasting = exc.text, exc.need, is_lasting(exc)
            self.failed_actions += 1
            _log.warning("%s of %s on %s: %s", verb, action.model_id, action.address, error)
        self.loads += isinstance(action, LoadAction) and error is None
        self.unloads += isinstance(action, UnloadAction) and error is None
        self._tell(action, verb, error)
        self._servers.finish(action, error, self._clock(), need, lasting=lasting)
        if error is None and action.address in self._hurries:
            self._hurries[action.address].set()  # its status shows the outcome, and wakes
        else:
            self.wake()

    def _tell(self, action: Action, verb: str, error: str | None) -> None:
        model_id, address = action.model_id, action.address
        if error is not None:
            kind, text = f"{verb}-failed", f"{verb} of {model_id} on {address} failed: {error}"
        elif isinstance(action, LoadAction):
            kind, text = "ready", f"{model_id} is ready on {address}"
        elif isinstance(action, UnloadAction):
            kind, text = "unloaded", f"{model_id} was unloaded from {address}: {action.why}"
        else:
            kind, text = "acls-changed", f"{address} enforces the new ACLs of {model_id}"
        self._events.note(kind, text, server=address, model_id=model_id)

    async def _poll(self, address: str) -> None:
        hurry = self._hurries[address] = asyncio.Event()
        while True:
            hurry.clear()
            before = self._servers.changes
            await self._ask(address)
            if self._servers.changes != before:
                self.wake()
            # Jitter: after a start that restored all servers, polls would coincide.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.poll_s * self._jitter.uniform(0.8, 1.2)):
                    await hurry.wait()

    async def _ask(self, address: str) -> None:
        asked_at_s = self._clock()
        try:
            status = await self._modelets.status(address)
        except SaxError as exc:
            self._note_refusal(address, exc)
            self._servers.missed(address, exc.text)
            return
        except Exception as exc:  # a bad answer must not end the polling
            _log.exception("GetStatus of %s gave an invalid answer", address)
            self._servers.missed(address, f"its answer is invalid: {exc!r}")
            return
        if self._servers.saw(address, status, asked_at_s, self._clock()):
            _log.info("model server %s was restarted: %s", address, status.incarnation)
            self._events.note("restarted", f"{address} was restarted", server=address)
            self._drop_calls(address)
        if status.draining:
            self.leave(address, status.incarnation)

    def _note_refusal(self, address: str, exc: SaxError) -> None:
        if isinstance(exc, NotLeading):
            self._on_refused(address, exc)

    def _drop_calls(self, address: str) -> None:
        for task in self._calls.pop(address, set()):
            task.cancel()

    def _forget(self, address: str) -> None:
        self._drop_calls(address)
        self._hurries.pop(address, None)
        poll = self._polls.pop(address, None)
        if poll is not None:
            poll.cancel()
        hang_up = asyncio.create_task(self._modelets.close(address))
        self._hang_ups.add(hang_up)
        hang_up.add_done_callback(self._hang_ups.discard)
