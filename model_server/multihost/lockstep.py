"""A Runner on several hosts: publishes each step to the others, then runs it here.

Wraps the runner that every host has and keeps the order: engines of several models launch from
several threads, and programs in which hosts wait for each other must start in one order everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from model_server.engine.running.ops import (
    Awaited,
    Forwarding,
    Later,
    Op,
    Pending,
    ReadAdapter,
    ReadWeights,
    Runner,
)
from model_server.engine.types import Step
from model_server.multihost.commands import Do, Drop, Launch, Warm
from model_server.multihost.primary import Primary
from sax.errors import ReplicaLost, Unavailable

_REPLY_S = 60.0
_READ_S = 3600.0  # another host's disk may be slower; one that is lost ends the replica


class GangPending:
    """What all hosts launched; turns a communication error into the loss of a named host."""

    def __init__(self, pending: Pending[Any], hosts: Primary) -> None:
        self._pending = pending
        self._hosts = hosts

    def result(self) -> Any:
        try:
            return self._pending.result()
        except Exception:
            self._hosts.wait_for_loss()
            raise


class Lockstep(Forwarding):
    """The primary's runner. Raises ReplicaLost once a host is lost."""

    def __init__(
        self, runner: Runner, servable: int, hosts: Primary, offers: Sequence[str] = ()
    ) -> None:
        """offers: addresses of every host, in host order, for other hosts or replicas."""
        super().__init__(runner)
        self.servable = servable
        self._hosts = hosts
        self.offers = offers

    def launch(self, *steps: Step) -> GangPending:
        with self._hosts.order:
            self._hosts.publish(Launch(self.servable, steps))
            return GangPending(super().launch(*steps), self._hosts)

    def do(self, op: Op) -> Pending[Any]:
        """As `Runner.do`, on every host between the same two steps.

        An `Awaited` op may be done while steps go on, in any order among them. Its result raises
        this host's error, or Unavailable with another host's reason.
        """
        if isinstance(op, Awaited):
            number = self._hosts.ask(self.servable, op)
            return Later(partial(self._on_all, super().do(op), number, _limit_s(op)))
        with self._hosts.order:
            self._hosts.publish(Do(self.servable, op))
            return GangPending(super().do(op), self._hosts)

    def _on_all(self, own: Pending[Any], number: int, limit_s: float) -> None:
        own.result()
        for reply in self._hosts.replies(number, limit_s):
            if reply.reason:
                raise Unavailable(f"{self._hosts.name(reply.ordinal)}: {reply.reason}")

    def warm(self, index: int) -> None:
        with self._hosts.order:
            self._hosts.publish(Warm(self.servable, index))
            try:
                super().warm(index)
            except Exception:
                self._hosts.wait_for_loss()
                raise

    def close(self) -> None:
        with suppress(ReplicaLost), self._hosts.order:
            self._hosts.publish(Drop(self.servable))
        super().close()


def _limit_s(op: Awaited) -> float:
    """Seconds to wait for the other hosts once this one has done it."""
    return _READ_S if isinstance(op, ReadWeights | ReadAdapter) else _REPLY_S
