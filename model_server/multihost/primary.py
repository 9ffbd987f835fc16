"""The primary's side of a gang: gathers the other hosts, sends commands, detects losses.

One thread listens (hellos, heartbeats, acknowledgements, votes), one sends heartbeats. Any thread
may publish. Callers interpret the answers to their commands.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable

import zmq

from model_server.engine.running.ops import Awaited
from model_server.multihost.channel import AnswerCollector, CommandPublisher, open_context
from model_server.multihost.commands import (
    Bye,
    Command,
    Do,
    Gone,
    HostBeat,
    Leaving,
    Lost,
    OpReply,
    Vote,
)
from model_server.multihost.heartbeat import Heartbeat
from model_server.multihost.hello import Hello, Welcome
from model_server.multihost.meeting import Reception, check_alone
from model_server.multihost.membership import Membership
from sax.errors import ReplicaLost, Unavailable

logger = logging.getLogger(__name__)

BEAT_S = 0.5
_AHEAD = 64  # commands a host may lag: it confirms every sixteenth, and twice a second
_LEAVE_S = 3.0  # for the others to leave after a Bye
_EXIT_S = 0.3  # from Gone to their exit; jax complains on a host that outlives this one
_LOG_S = 10.0

OnLoss = Callable[[ReplicaLost], None]
OnLeaving = Callable[[str], None]


class Primary:
    """Publishers of commands that run programs on devices must hold `order`."""

    def __init__(
        self,
        membership: Membership,
        own: Hello,
        *,
        bind: str,
        port: int,
        timeout_s: float,
        bring_up_s: float,
    ) -> None:
        """bind: address of this host that the others reach. Raises OSError."""
        self.membership = membership
        self.order = threading.Lock()  # programs must start in the order of their commands
        self.lost: ReplicaLost | None = None
        self._own = own
        self._port = port
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + bring_up_s
        self._context = open_context()
        self._reception = Reception(self._context, own, membership.names, bind, port)
        self._commands = CommandPublisher(self._context, bind)
        self._answers = AnswerCollector(self._context, bind)
        self._changed = threading.Condition()  # guards all below
        self._heartbeat: Heartbeat | None = None
        self._votes: dict[int, dict[int, Vote]] = {}  # by servable, by host
        self._replies: dict[int, dict[int, OpReply]] = {}  # by number, by host
        self._numbers = itertools.count(1)
        self._beating: set[int] = set()
        self._gone: set[int] = set()
        self._closing = False  # no host can be lost any more
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.on_loss: OnLoss | None = None
        self.on_leaving: OnLeaving | None = None

    def bring_up(self, coordinator: int) -> dict[int, str]:
        """Wait for every host, then send all of them the addresses. Returns each host's machine id.

        coordinator: port of jax's coordination service. Raises InvalidRequest if another process is
        the primary, Unavailable if not all hosts came in time.
        """
        check_alone(
            self._context, self._own, self.membership.primary, self._port, self._reception.answer
        )
        self._wait_for_all()
        machines = {0: self._own.machine, **self._reception.machines}
        self._heartbeat = Heartbeat(range(1, self._own.count), self._timeout_s, time.monotonic())
        self._reception.welcome(
            Welcome(
                host=self.membership.primary,
                coordinator=coordinator,
                commands=self._commands.port,
                replies=self._answers.port,
            )
        )
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._listen, "hosts"), (self._beat, "beat"))
        ]
        for thread in self._threads:
            thread.start()
        self._wait_for_first_beats()
        return machines

    def publish(self, command: Command) -> None:
        """Send to every host; blocks while one of them is far behind. Raises ReplicaLost."""
        if self._commands.published - self._done() >= _AHEAD:
            with self._changed:
                self._changed.wait_for(
                    lambda: self.lost or self._commands.published - self._done() < _AHEAD
                )
        self.check()
        self._commands.publish(command)

    def check(self) -> None:
        """Raise ReplicaLost once a host is lost."""
        if self.lost is not None:
            raise ReplicaLost(self.lost.text)

    def wait_for_loss(self) -> None:
        """After an error between hosts, wait until the lost one is known. Raises ReplicaLost."""
        with self._changed:
            self._changed.wait_for(lambda: self.lost, self._timeout_s + 2 * BEAT_S)
        self.check()

    def votes(self, servable: int, look: Callable[[], None]) -> list[Vote]:
        """Wait for all votes on a model or one refusal.

        `look` is called periodically and may raise.
        """
        others = self.membership.count - 1

        def given() -> list[Vote]:
            return list(self._votes.get(servable, {}).values())

        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self.lost or len(given()) == others or any(v.reason for v in given()),
                    BEAT_S,
                )
                self.check()
                found = given()
            if len(found) == others or any(vote.reason for vote in found):
                return found
            look()

    def waiting_for(self, servable: int) -> str:
        """Return the hosts that have not voted on a model, formatted for messages."""
        with self._changed:
            voted = self._votes.get(servable, {})
            missing = [n for n in range(1, self.membership.count) if n not in voted]
        return ", ".join(self.name(ordinal) for ordinal in missing)

    def ask(self, servable: int, op: Awaited) -> int:
        """Have every other host do an op; returns the number for `replies`. Raises ReplicaLost."""
        number = next(self._numbers)
        self.publish(Do(servable, op, number))
        return number

    def replies(self, number: int, timeout_s: float) -> list[OpReply]:
        """Wait for every host's reply to an op. Raises ReplicaLost, Unavailable."""
        others = self.membership.count - 1
        with self._changed:
            self._changed.wait_for(
                lambda: self.lost or len(self._replies.get(number, {})) == others, timeout_s
            )
            self.check()
            found = list(self._replies.pop(number, {}).values())
        if len(found) < others:
            raise Unavailable(f"not every host answered within {timeout_s:.0f} s")
        return found

    def name(self, ordinal: int) -> str:
        return f"host {ordinal} ({self.membership.names[ordinal]})"

    def lose(self, ordinal: int, why: str) -> None:
        """Declare a host, and so the replica, lost; wakes all waiters. Later calls do nothing."""
        self._end(
            ReplicaLost(
                f"{self.name(ordinal)} of this replica is lost: {why}; the replica restarts"
            )
        )

    def give_up(self, error: ReplicaLost) -> None:
        """Declare the replica lost for this reason, and name the hosts that are behind."""
        behind = self._heartbeat.behind(self._commands.published) if self._heartbeat else []
        names = ", ".join(map(self.name, behind))
        waits = f" (not every command was performed by {names})" if names else ""
        self._end(type(error)(error.text + waits))

    def _end(self, error: ReplicaLost) -> None:
        """Declare the replica lost; wakes all waiters. Later calls do nothing."""
        with self._changed:
            if self.lost is not None or self._closing:
                return
            self.lost = error
            self._changed.notify_all()
        logger.error("%s", self.lost.text)
        self._commands.publish(Lost(self.lost.text))
        if self.on_loss is not None:
            self.on_loss(self.lost)

    def dismiss(self, reason: str) -> None:
        """Tell the other hosts why they cannot form a replica."""
        self._commands.publish(Lost(reason))
        time.sleep(BEAT_S)

    def close(self) -> None:
        """Let the other hosts leave, then end. Idempotent."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
        if self._heartbeat is not None and self.lost is None:
            self._commands.publish(Bye())
            with self._changed:
                self._changed.wait_for(
                    lambda: len(self._gone) == self.membership.count - 1, _LEAVE_S
                )
            time.sleep(_EXIT_S)
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._context.destroy()

    def _done(self) -> int:
        return self._heartbeat.done if self._heartbeat is not None else 0

    def _wait_for_all(self) -> None:
        told_s = 0.0
        while not self._reception.complete:
            now_s = time.monotonic()
            if now_s > self._deadline_s:
                raise Unavailable(
                    f"these hosts did not arrive in time (--bring_up_seconds): "
                    f"{self._reception.missing}"
                )
            if now_s - told_s > _LOG_S:
                logger.info("waiting for %s", self._reception.missing)
                told_s = now_s
            self._reception.socket.poll(100)
            self._reception.answer()

    def _wait_for_first_beats(self) -> None:
        """Wait until all hosts receive: commands published before a first heartbeat are lost."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.lost or len(self._beating) == self.membership.count - 1
            )
        self.check()

    # The listening thread

    def _listen(self) -> None:
        poller = zmq.Poller()
        poller.register(self._reception.socket, zmq.POLLIN)
        poller.register(self._answers.socket, zmq.POLLIN)
        while not self._ended.is_set():
            poller.poll(round(1000 * BEAT_S / 2))
            self._reception.answer()
            while (answer := self._answers.take()) is not None:
                self._note(answer)
            self._look_for_losses()

    def _note(self, answer: HostBeat | Vote | OpReply | Leaving | Gone) -> None:
        assert self._heartbeat is not None
        done = answer.done if isinstance(answer, HostBeat) else 0
        with self._changed:
            self._heartbeat.heard(answer.ordinal, done, time.monotonic())
            self._beating.add(answer.ordinal)
            if isinstance(answer, Vote):
                self._votes.setdefault(answer.servable, {})[answer.ordinal] = answer
            elif isinstance(answer, OpReply):
                self._replies.setdefault(answer.number, {})[answer.ordinal] = answer
            elif isinstance(answer, Gone):
                self._gone.add(answer.ordinal)
            self._changed.notify_all()
        if isinstance(answer, Leaving) and self.on_leaving is not None:
            self.on_leaving(self.name(answer.ordinal))
        if isinstance(answer, Gone) and not self._closing:
            self.lose(answer.ordinal, answer.reason or "it left")

    def _look_for_losses(self) -> None:
        assert self._heartbeat is not None
        with self._changed:
            found = self._heartbeat.lost(self._commands.published, time.monotonic())
        if found is not None and not self._closing:
            self.lose(*found)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._commands.beat()
