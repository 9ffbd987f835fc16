"""A Runner on several hosts: publishes each step to the others, then runs it here.

Wraps the runner that every host has and keeps the order: engines of several models launch from
several threads, and programs in which hosts wait for each other must start in one order everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from model_server.engine.media.encode_batch import EncodeBatch
from model_server.engine.types import (
    EngineLimits,
    HeldRunner,
    MediaRunner,
    PendingStep,
    SlotMask,
    Step,
    StepResult,
)
from model_server.multihost.commands import Call, Choose, Drop, Encode, Launch, Perform, Warm
from model_server.multihost.primary import Primary
from sax.errors import ReplicaLost, Unavailable

_CALL_S = 60.0


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
    """The primary's runner. Raises ReplicaLost once a host is lost."""

    def __init__(
        self, runner: HeldRunner, servable: int, hosts: Primary, offers: Sequence[str] = ()
    ) -> None:
        """offers: addresses of every host, in host order, for other hosts or replicas."""
        self._runner = runner
        self.servable = servable
        self._hosts = hosts
        self.offers = offers

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

    def choose(self, masks: Sequence[SlotMask]) -> None:
        with self._hosts.order:
            self._hosts.publish(Choose(self.servable, tuple(masks)))
            self._runner.choose(masks)

    def encode(self, batch: EncodeBatch) -> None:
        """As `MediaRunner.encode`, on every host between the same two steps."""
        runner = self._runner
        assert isinstance(runner, MediaRunner), "its limits are those of an encoder"
        with self._hosts.order:
            self._hosts.publish(Encode(self.servable, batch))
            runner.encode(batch)

    @property
    def warmups(self) -> int:
        return self._runner.warmups

    def warm(self, index: int) -> None:
        with self._hosts.order:
            self._hosts.publish(Warm(self.servable, index))
            try:
                self._runner.warm(index)
            except Exception:
                self._hosts.wait_for_loss()
                raise

    def import_pages(
        self, key: int, pages: Sequence[int], near: Sequence[int], slot: int, token: int
    ) -> None:
        self._perform("import_pages", key, pages, near, slot, token)

    def export_pages(self, key: int, pages: Sequence[int], near: Sequence[int]) -> None:
        self._perform("export_pages", key, pages, near)

    def _perform(self, method: str, *arguments: Any) -> None:
        """Call a runner method on every host between the same two steps."""
        with self._hosts.order:
            self._hosts.publish(Perform(self.servable, method, arguments))
            getattr(self._runner, method)(*arguments)

    def read_adapter(self, key: str, path: str) -> None:
        """Read an adapter on every host, while steps go on. Raises SaxError."""
        self.call("read_adapter", key, background=True, path=path)

    def forget_adapter(self, key: str) -> None:
        self._perform("forget_adapter", key)

    def write_adapter(self, key: str, place: int) -> None:
        self._perform("write_adapter", key, place)

    def call(self, method: str, key: str, *, background: bool = False, **arguments: Any) -> None:
        """Call a runner method on every host, this one included, and wait for all.

        Raises the local error, or Unavailable with a failed host's reason.
        """
        arguments = {"key": key, **arguments}
        self._hosts.publish(Call(self.servable, method, arguments, background))
        getattr(self._runner, method)(**arguments)
        for reply in self._hosts.replies(self.servable, key, _CALL_S):
            if reply.reason:
                raise Unavailable(f"{self._hosts.name(reply.ordinal)}: {reply.reason}")

    def close(self) -> None:
        with suppress(ReplicaLost), self._hosts.order:
            self._hosts.publish(Drop(self.servable))
        self._runner.close()
