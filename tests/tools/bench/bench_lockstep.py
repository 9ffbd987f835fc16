"""What lockstep costs the primary for each step: telling the other hosts, and nothing else.

The other hosts are processes of their own on this machine, with the real sockets and threads; every
runner computes nothing. A step is launched plainly and in lockstep in turns, so that both meet the
same machine. The engine's pace is kept: a step is due every few milliseconds.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from typing import Any

import zmq

from model_server.engine.limits import EngineLimits
from model_server.engine.types import PageGrant, Row, RowResult, Step, StepResult
from model_server.multihost.commands import Launch, encode
from model_server.multihost.lockstep import Lockstep
from model_server.multihost.meeting import say_hello
from model_server.multihost.primary import Primary
from model_server.multihost.programs import KeptPrograms, ProgramFiles
from model_server.multihost.secondary import Secondary
from model_server.multihost.vote import Shares
from tests.end_to_end.cell import free_ports
from tests.model_server.multihost.hosts_here import SPEC, greeting, membership
from tests.tools.bench.table import Table

OTHERS = (1, 3, 7)
SLOTS = 64
STEPS = 1000
_WARMING = 100
_GAP_S = 0.005  # between two steps
_GRANTED = 2  # pages; a slot is given some now and then, never all slots at once as here
_TIMEOUT_S = 30.0
LIMITS = EngineLimits(
    slots=SLOTS,
    pages=2**15,
    page_size=16,
    max_context=2**15,
    token_budget=512,
    max_logit_rows=SLOTS,
)


class _Answered:
    """A step that is done already."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def result(self) -> list[StepResult]:
        return [StepResult(self._step.number, tuple(RowResult(0) for _ in self._step.rows))]


class InstantRunner:
    """Takes any step and computes nothing; the same on every host."""

    warmups = 0
    closed = False

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.ops: dict[Any, Any] = {}

    def launch(self, *steps: Step) -> _Answered:
        (step,) = steps
        return _Answered(step)

    def warm(self, index: int) -> None:
        """There is nothing to warm."""

    def do(self, op: object) -> Any:
        raise AssertionError("these are steps alone")

    def close(self) -> None:
        self.closed = True


def run() -> Table:
    table = Table(
        "Lockstep: what a step costs the primary",
        f"The time `launch` takes on the primary of a replica of several hosts, less that of the "
        f"same runner alone, in turns; {SLOTS} decoding slots, a step every {1e3 * _GAP_S:g} ms, "
        f"{STEPS} steps. The other hosts are processes on this machine, which share its cores with "
        "the primary. The message is what each host is sent: with grants, every slot gets "
        f"{_GRANTED} pages in the same step. Bars, with 3 other hosts: 0.3 ms, 4,096 bytes.",
        ("other hosts", "page grants", "message bytes", "median added ms", "p90 added ms"),
    )
    for others in OTHERS:
        for granted in (0, _GRANTED):
            added_s = measure(others, granted)
            table.add(
                others,
                "none" if not granted else f"{granted} for each slot",
                len(encode(Launch(1, (step_of(10**6, granted),)))),
                f"{1e3 * statistics.median(added_s):.3f}",
                f"{1e3 * statistics.quantiles(added_s, n=10)[-1]:.3f}",
            )
    return table


def step_of(number: int, granted: int) -> Step:
    """All slots decode, far into long answers."""
    rows = tuple(Row(10**6 + slot, slot, 30_000 + slot, (), True) for slot in range(SLOTS))
    pages = [
        tuple(20_000 + granted * slot + page for page in range(granted)) for slot in range(SLOTS)
    ]
    grants = tuple(PageGrant(slot, 1900, each) for slot, each in enumerate(pages) if each)
    return Step(number, rows, grants)


def measure(others: int, granted: int) -> list[float]:
    """Seconds that each launch takes longer with other hosts than without."""
    port = free_ports(1)[0]
    spawn = multiprocessing.get_context("spawn")
    hosts = [
        spawn.Process(target=_follow, args=(ordinal, others + 1, port), daemon=True)
        for ordinal in range(1, others + 1)
    ]
    for host in hosts:
        host.start()
    primary = Primary(
        membership(others + 1),
        greeting(others + 1, 0),
        bind="127.0.0.1",
        port=port,
        timeout_s=_TIMEOUT_S,
        bring_up_s=120.0,
    )
    try:
        primary.bring_up(coordinator=1)
        return _added_s(primary, granted)
    finally:
        primary.close()
        for host in hosts:
            host.join(10)
            host.kill()


def _added_s(primary: Primary, granted: int) -> list[float]:
    alone = InstantRunner(LIMITS)
    shares = Shares(primary, KeptPrograms(ProgramFiles(None), ""), alike=True)
    together: Lockstep = shares.load(
        SPEC, LIMITS, lambda programs: InstantRunner(LIMITS), lambda progress: None
    )
    added_s: list[float] = []
    for number in range(1, _WARMING + STEPS + 1):
        step = step_of(number, granted)
        time.sleep(_GAP_S)
        added_s.append(_launch_s(together, step) - _launch_s(alone, step))
    together.close()
    return added_s[_WARMING:]


def _launch_s(runner: Any, step: Step) -> float:
    began_s = time.perf_counter()
    pending = runner.launch(step)
    spent_s = time.perf_counter() - began_s
    pending.result()
    return spent_s


def _follow(ordinal: int, count: int, port: int) -> None:
    """One other host, in a process of its own."""
    own = greeting(count, ordinal)
    with zmq.Context() as context:
        welcome = say_hello(context, own, "127.0.0.1", port, time.monotonic() + 120)
    secondary = Secondary(ordinal, welcome, _TIMEOUT_S, "node-0")
    secondary.start()
    secondary.run(lambda spec, limits, programs, report: InstantRunner(limits))
    secondary.end("")
