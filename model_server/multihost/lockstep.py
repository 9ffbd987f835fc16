"""A Runner on several hosts: publishes each step to the others, then runs it here.

Wraps the runner that every host has and keeps the order: engines of several models launch from
several threads, and programs in which hosts wait for each other must start in one order everywhere.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

from model_server.engine.types import EngineLimits, PendingStep, Step, StepResult
from model_server.multihost.commands import Call, Drop, Launch, Warm
from model_server.multihost.primary import Primary
from sax.errors import ReplicaLost, Unavailable

_CALL_S = 60.0


class LocalRunner(Protocol):
    """This host's runner of the model."""

    @property
    def limits(self) -> EngineLimits: ...

    @property
    def closed(self) -> bool: ...

    @property
    def buckets(self) -> int: ...

    def launch(self, step: Step) -> PendingStep: ...

    def warm(self, bucket: int) -> None: ...

    def close(self) -> None: ...


class _Pending:
    """A step of all hosts; turns a communication error into the loss of a named host."""

    def __init__(self, pending: PendingStep, hosts: Primary) -> None:
        self._pending = pending
        self._hosts = hosts

    def result(self) -> StepResult:
        try:
            return self._pending.result()
        except Exception:
            self._hosts.wait_for_loss()
            raise


class Lockstep:
    """The primary's Runner. Raises ReplicaLost once a host is lost."""

    def __init__(self, runner: LocalRunner, servable: int, hosts: Primary) -> None:
        self._runner = runner
        self.servable = servable
        self._hosts = hosts
        self.offers: list[str] = []  # of every host, for other hosts or replicas

    @property
    def limits(self) -> EngineLimits:
        return self._runner.limits

    @property
    def closed(self) -> bool:
        return self._runner.closed

    def launch(self, step: Step) -> PendingStep:
        with self._hosts.order:
            self._hosts.publish(Launch(self.servable, step))
            return _Pending(self._runner.launch(step), self._hosts)

    def warm(self, bucket: int) -> None:
        """Run an empty step on every host."""
        with self._hosts.order:
            self._hosts.publish(Warm(self.servable, bucket))
            try:
                self._runner.warm(bucket)
            except Exception:
                self._hosts.wait_for_loss()
                raise

    def connect(self, offers: list[str]) -> None:
        """Send every host the offers of all hosts, in host order."""
        self.call("connect", "connect", offers=offers)
        self.offers = offers

    def call(self, method: str, key: str, **arguments: Any) -> None:
        """Call a runner method on every host, this one included, and wait for all.

        Raises the error raised here, or Unavailable with the reason of a host where it failed.
        """
        arguments = {"key": key, **arguments}
        self._hosts.publish(Call(self.servable, method, arguments))
        getattr(self._runner, method)(**arguments)
        for reply in self._hosts.replies(self.servable, key, _CALL_S):
            if reply.reason:
                raise Unavailable(f"{self._hosts.name(reply.ordinal)}: {reply.reason}")

    def close(self) -> None:
        with suppress(ReplicaLost), self._hosts.order:
            self._hosts.publish(Drop(self.servable))
        self._runner.close()
