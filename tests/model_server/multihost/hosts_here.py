"""The hosts of one replica in one process: real sockets and threads, arithmetic instead of devices.

Every host computes with the engine tests' FakeRunner, so that what a host was told can be compared
with what the primary did.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import zmq

from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import (
    DONE,
    ExportPages,
    ForgetWeights,
    ImportPages,
    Later,
    Op,
    ReadAdapter,
    ReadWeights,
    WriteWeights,
)
from model_server.engine.types import Step
from model_server.multihost.hello import Hello
from model_server.multihost.meeting import say_hello
from model_server.multihost.membership import Membership
from model_server.multihost.primary import Primary
from model_server.multihost.programs import KeptPrograms, ProgramFiles
from model_server.multihost.secondary import Secondary
from model_server.multihost.vote import Shares
from sax.types import ModelSpec, Progress
from tests.end_to_end.cell import free_ports
from tests.model_server.engine.fake_runner import FakeRunner

SPEC = ModelSpec(model_id="/sax/test/fake", model_path="fake", checkpoint="None", replicas=1)
LIMITS = EngineLimits(
    slots=4, pages=64, page_size=4, max_context=64, token_budget=32, max_logit_rows=8
)


class FakeShare(FakeRunner):
    """What one host holds; remembers what it was told."""

    warmups = 2

    def __init__(self, limits: EngineLimits) -> None:
        super().__init__(limits)
        self.told: list[Any] = []
        self.weights = ""  # the key of those in place
        self._has_read: set[str] = set()  # keys of weights that are not in place

    @property
    def ops(self) -> Mapping[type[Op], Mapping[int, float]]:
        return {**super().ops, ReadAdapter: {}, ReadWeights: {}}

    def launch(self, *steps: Step) -> Any:
        self.told += steps
        return super().launch(*steps)

    def do(self, op: Op) -> Any:
        self.told.append(op)
        match op:
            case ReadAdapter() | ReadWeights():
                return Later(lambda: self.read(op))
            case WriteWeights():
                self._has_read.remove(op.key)
                self.weights = op.key
                return DONE
            case ForgetWeights():
                self._has_read.discard(op.key)
                return DONE
            case _:
                pass
        return DONE if isinstance(op, ImportPages | ExportPages) else super().do(op)

    def read(self, op: ReadAdapter | ReadWeights) -> None:
        """What a test may have fail."""
        if isinstance(op, ReadWeights):
            self._has_read.add(op.key)

    def warm(self, index: int) -> None:
        self.told.append(index)


def greeting(count: int, ordinal: int, **changes: Any) -> Hello:
    """What an ordinary host says."""
    said: dict[str, Any] = {
        "count": count,
        "ordinal": ordinal,
        "name": f"node-{ordinal}",
        "nonce": f"nonce {ordinal}",
        "versions": {"sax": "1 (abc)", "jax": "0.10"},
        "machine": "linux",
        "flags": {"--slots": "4"},
    }
    return Hello(**{**said, **changes})


def membership(count: int, ordinal: int = 0) -> Membership:
    names = tuple(f"node-{each}" for each in range(count))
    return Membership(count, ordinal, "127.0.0.1", names, "a test")


class HostsHere:
    """A primary, and as many secondaries as wanted; a context manager."""

    def __init__(
        self,
        count: int = 3,
        *,
        timeout_s: float = 30.0,
        build: Callable[[int, EngineLimits], FakeShare] | None = None,
    ) -> None:
        self.count = count
        self.shares: dict[int, list[FakeShare]] = {each: [] for each in range(1, count)}
        self.ended: dict[int, BaseException | None] = {}
        self.secondaries: dict[int, Secondary] = {}
        self._build = build or (lambda ordinal, limits: FakeShare(limits))
        self._port = free_ports(1)[0]
        self._timeout_s = timeout_s
        self.primary = Primary(
            membership(count),
            greeting(count, 0),
            bind="127.0.0.1",
            port=self._port,
            timeout_s=timeout_s,
            bring_up_s=60.0,
        )
        self.loads = Shares(self.primary, KeptPrograms(ProgramFiles(None), ""), alike=True)
        self._threads = [
            threading.Thread(target=self._follow, args=(each,), daemon=True)
            for each in range(1, count)
        ]

    def __enter__(self) -> HostsHere:
        for thread in self._threads:
            thread.start()
        self.primary.bring_up(coordinator=1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.primary.close()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a host does not end"

    def _follow(self, ordinal: int) -> None:
        own = greeting(self.count, ordinal)

        with zmq.Context() as context:
            welcome = say_hello(context, own, "127.0.0.1", self._port, time.monotonic() + 60)
        secondary = Secondary(ordinal, welcome, self._timeout_s, "node-0")
        self.secondaries[ordinal] = secondary
        secondary.start()
        try:
            secondary.run(lambda *told: self._share(ordinal, *told))
            self.ended[ordinal] = None
            secondary.end("")
        except BaseException as exc:
            self.ended[ordinal] = exc
            secondary.end(str(exc))

    def _share(
        self,
        ordinal: int,
        spec: ModelSpec,
        limits: EngineLimits,
        programs: Any,
        report: Callable[[Progress], None],
    ) -> FakeShare:
        report(Progress("starting"))
        share = self._build(ordinal, limits)
        self.shares[ordinal].append(share)
        return share
