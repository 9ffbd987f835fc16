"""A secondary host: performs the primary's commands in order and sends heartbeats.

The main thread performs commands. Each load has a thread of its own, so that loaded models go on
serving; one thread sends heartbeats. Ends when the primary says so or falls silent. Uses the same
runners as the primary; results stay on the devices.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from model_server.engine.failure import as_load_error
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Pending, Runner
from model_server.multihost.channel import AnswerSender, CommandReceiver, open_context
from model_server.multihost.commands import (
    Bye,
    Command,
    Do,
    Drop,
    Gone,
    HostBeat,
    Launch,
    Leaving,
    LoadCommand,
    Lost,
    OpReply,
    ProgramCommand,
    Vote,
    Warm,
)
from model_server.multihost.heartbeat import Heartbeat
from model_server.multihost.hello import Welcome
from model_server.multihost.primary import BEAT_S
from model_server.multihost.programs import ReceivedPrograms
from sax.errors import ReplicaLost, SaxError, Unavailable
from sax.need import to_text
from sax.types import ModelSpec, Progress

logger = logging.getLogger(__name__)

_CONFIRM = 16  # commands between confirmations, besides heartbeats
_IN_FLIGHT = 2  # steps, as in the primary's engine
_PRIMARY = 0


# Blocking: builds this host's share of a model, in the same class as on every host.
Build = Callable[[ModelSpec, EngineLimits, ReceivedPrograms, Callable[[Progress], None]], Runner]


class _Dropped(BaseException):
    """Unwinds a load whose model was dropped."""


@dataclass(slots=True, eq=False)
class _HeldShare:
    """This host's part of one model."""

    programs: ReceivedPrograms
    runner: Runner | None = None
    dropped: bool = False
    in_flight: deque[Pending[Any]] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def built(self) -> Runner:
        assert self.runner is not None, "it comes after all votes"
        return self.runner

    def keep(self, runner: Runner) -> bool:
        """Keep the built runner; returns False if the model was dropped meanwhile."""
        with self._lock:
            if not self.dropped:
                self.runner = runner
            return not self.dropped

    def drop(self) -> Runner | None:
        """Mark as dropped and return the runner to close, if any."""
        with self._lock:
            self.dropped = True
            return self.runner


class Secondary:
    def __init__(self, ordinal: int, welcome: Welcome, timeout_s: float, primary_name: str) -> None:
        self._ordinal = ordinal
        self._primary_name = primary_name
        self._context = open_context()
        self._commands = CommandReceiver(self._context, welcome.host, welcome.commands)
        self._answers = AnswerSender(welcome.host, welcome.replies)
        self._timeout_s = timeout_s
        self._heartbeat = Heartbeat([_PRIMARY], timeout_s, time.monotonic())
        self._heard = threading.Event()
        self._done = 0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[tuple[int, Command] | SaxError] = SimpleQueue()
        self._shares: dict[int, _HeldShare] = {}
        self.on_loss: Callable[[str], None] = lambda reason: None

    def start(self) -> None:
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._listen, "commands"), (self._beat, "beat"))
        ]
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        """Report a SIGTERM: the replica drains, then the primary says Bye."""
        self._answers.send(Leaving(self._ordinal))

    def fail(self, failure: BaseException) -> None:
        """Stop this host for a failure outside the commands."""
        self._queue.put(Unavailable(f"{type(failure).__name__}: {failure}"))

    def wait_for_loss(self) -> None:
        """After a device failure, give `on_loss` time: another host may be the cause."""
        self._ended.wait(self._timeout_s + 2 * BEAT_S)

    def end(self, reason: str) -> None:
        """Tell the primary that this host is going, and stop listening."""
        self._answers.send(Gone(self._ordinal, reason))
        self._answers.close()
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._context.destroy()

    def run(self, build: Build) -> None:
        """Perform commands until a Bye. Raises SaxError, or whatever a command raised."""
        while True:
            received = self._queue.get()
            if isinstance(received, SaxError):
                raise received
            number, command = received
            if isinstance(command, Bye):
                return
            self._perform(command, build)
            self._done = number
            if number % _CONFIRM == 0:
                self._answers.send(HostBeat(self._ordinal, number))

    # Commands

    def _perform(self, command: Command, build: Build) -> None:
        if isinstance(command, Launch):
            self._launch(self._shares[command.servable], command)
        elif isinstance(command, Do):
            self._do(command)
        elif isinstance(command, LoadCommand):
            self._load(command, build)
        elif isinstance(command, ProgramCommand):
            if share := self._shares.get(command.servable):  # otherwise dropped meanwhile
                share.programs.put(command.name, command.body)
        elif isinstance(command, Warm):
            self._shares[command.servable].built.warm(command.index)
        elif isinstance(command, Drop):
            self._drop(command.servable)

    def _launch(self, share: _HeldShare, command: Launch) -> None:
        """Launch steps; device errors surface when the result of earlier ones is read."""
        if len(share.in_flight) == _IN_FLIGHT:
            share.in_flight.popleft().result()
        share.in_flight.append(share.built.launch(*command.steps))

    def _do(self, command: Do) -> None:
        """Do an op in its turn; if it is awaited, wait for its result in a thread and reply."""
        share = self._shares.get(command.servable)
        if share is None:  # dropped meanwhile
            self._reply(command, "this host has no such model")
            return
        if not command.reply:
            share.built.do(command.op)
            return
        try:
            pending = share.built.do(command.op)
        except SaxError as error:
            self._reply(command, error.text)
            return
        wait = threading.Thread(target=self._await, args=(command, pending), daemon=True)
        wait.start()

    def _await(self, command: Do, pending: Pending[Any]) -> None:
        reason = ""
        try:
            pending.result()
        except Exception as error:
            if not isinstance(error, SaxError):
                logger.exception("%s failed", type(command.op).__name__)
            reason = as_load_error(error).text
        self._reply(command, reason)

    def _reply(self, command: Do, reason: str) -> None:
        if command.reply:
            self._answers.send(OpReply(self._ordinal, command.reply, reason))

    def _load(self, command: LoadCommand, build: Build) -> None:
        share = _HeldShare(ReceivedPrograms())
        self._shares[command.servable] = share

        def report(progress: Progress) -> None:
            if share.dropped:
                raise _Dropped

        def work() -> None:
            try:
                runner = build(command.spec, command.limits, share.programs, report)
                if not share.keep(runner):
                    runner.close()
                    return
                offer = getattr(runner, "offer", "")
                vote = Vote(self._ordinal, command.servable, "", offer=offer)
                logger.info("loaded this host's share of %s", command.spec.model_id)
            except _Dropped:
                return
            except BaseException as exc:  # the primary must hear of any failure
                logger.exception("loading failed for key: %s", command.spec.model_id)
                vote = self._refusal(command.servable, as_load_error(exc))
            self._answers.send(vote)

        threading.Thread(target=work, name=f"load {command.spec.model_id}", daemon=True).start()

    def _refusal(self, servable: int, error: SaxError) -> Vote:
        need = to_text(error.need) if error.need is not None else ""
        return Vote(self._ordinal, servable, error.text, type(error).__name__, need)

    def _drop(self, servable: int) -> None:
        share = self._shares.pop(servable, None)
        if share is None:
            return
        share.programs.close()
        if (runner := share.drop()) is not None:
            runner.close()
            logger.info("freed this host's share of a model")

    # Other threads

    def _listen(self) -> None:
        try:
            while not self._ended.is_set():
                if (received := self._commands.receive(self._hear)) is None:
                    continue
                if isinstance(received[1], Lost):
                    self._lose(received[1].reason)
                    return
                self._queue.put(received)
                if isinstance(received[1], Bye):
                    return
        except SaxError as error:
            self._queue.put(error)

    def _lose(self, reason: str) -> None:
        self._queue.put(ReplicaLost(reason))
        # The main thread may be waiting for a device that waits for the lost host.
        self.on_loss(reason)

    def _hear(self) -> None:
        self._heartbeat.heard(_PRIMARY, 0, time.monotonic())
        self._heard.set()

    def _beat(self) -> None:
        """Send heartbeats once the primary was first heard; watch the primary."""
        while not self._ended.is_set():
            if self._heard.is_set():
                self._answers.send(HostBeat(self._ordinal, self._done))
            if found := self._heartbeat.lost(0, time.monotonic()):
                self._lose(f"host 0 ({self._primary_name}), the primary, is lost: {found[1]}")
                return
            self._ended.wait(BEAT_S)
