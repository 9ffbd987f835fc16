"""One fault after the other: strike in the midst of something, heal, wait until all is right."""

from __future__ import annotations

import logging
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.chaos.pathways.calls import Call, ClientProcess, Ended, Hang
from tests.tools.chaos.pathways.deployment import Deployment
from tests.tools.chaos.pathways.faults import IDLE, Fault
from tests.tools.chaos.pathways.held import Held, Pressure, held
from tests.tools.chaos.pathways.judging import Blow, Verdict, judge

logger = logging.getLogger(__name__)

TARGET, BESIDE = "target", "beside"
_HANG_S = 60.0  # a client that says nothing for so long is not waited for
_WHOLE_S = 120.0
_USUAL_S = {"compile": 1.0, "first execute": 0.9, "copy": 0.1, "put": 0.15, "fetch": 0.15}
_LAST_WORDS = 4000  # characters of a client's log
_STALE_S = 1.0  # that the status page may be behind
# With these words jaxlib's client ends its process, where it cannot pass on that its connection is
# lost. Nobody but jaxlib can change it.
_JAXLIB_ENDS = "Attempting to fetch value instead of handling error UNAVAILABLE"


@dataclass(frozen=True)
class Chapter:
    """One fault, what came of it, and what is held afterwards."""

    blow: Blow
    verdict: Verdict
    held: dict[str, Held]  # by role
    sessions: int  # on the status page
    handles: int
    buffer_bytes: int
    arrays: int  # that living clients hold
    pressure: float  # share of the time in which something waited for a processor
    ended: int  # clients whose process jaxlib ended


class Story:
    """A client that faults aim at, one that computes beside it all the time, and their islands."""

    def __init__(self, deployment: Deployment, folder: Path, luck: random.Random) -> None:
        self._deployment = deployment
        self._folder = folder
        self._luck = luck
        self._starts = 0
        self._clients = {name: self._start(name) for name in (TARGET, BESIDE)}
        self._calls: dict[str, list[list[Call]]] = {TARGET: [], BESIDE: []}  # of this chapter
        self._ended = 0
        self._pressure = Pressure()

    def begin(self) -> None:
        """Compute everything once, so that what comes later was met before. Raises Hang."""
        for name in self._clients:
            self._until_right(name, None)
        for name in _USUAL_S:
            self._clients[TARGET].ask("deed", _HANG_S, name=name, island=0, size="large")

    def play(self, fault: Fault) -> Chapter:
        """Raises Hang, and Ended for a client that has no reason to."""
        target, beside = self._clients[TARGET], self._clients[BESIDE]
        target.ask("keep", _HANG_S)
        starts = {TARGET: len(target.calls), BESIDE: len(beside.calls)}
        first = {TARGET: target, BESIDE: beside}
        self._calls, self._ended = {TARGET: [], BESIDE: []}, 0
        self._pressure = Pressure()
        beside.tell("loop")
        aimed = self._begin(fault)
        blow = self._strike(fault)
        blow.in_flight = aimed is not None and (aimed.ended_s is None or aimed.ended_s > blow.at_s)
        self._until_whole(blow)
        if self._clients[TARGET] is target:
            target.ask("old", _HANG_S)
        for name, client in first.items():
            self._calls[name].append(client.calls[starts[name] :])
        own, others = ([call for calls in self._calls[name] for call in calls] for name in first)
        return self._chapter(blow, judge(blow, own, others))

    def close(self) -> None:
        for client in self._clients.values():
            client.kill()

    # Parts of a chapter

    def _begin(self, fault: Fault) -> Call | None:
        """Let the target begin what the fault aims at, and wait for some moment of it."""
        if fault.moment == IDLE:
            time.sleep(self._luck.uniform(0.0, 0.3))
            return None
        target = self._clients[TARGET]
        start = len(target.calls)
        target.tell("deed", name=fault.moment, island=fault.island, size="large")
        aimed = target.until_begun(fault.moment, start, _HANG_S)
        time.sleep(self._luck.uniform(0.0, _USUAL_S[fault.moment]))
        return aimed

    def _strike(self, fault: Fault) -> Blow:
        """Kill or stop, wait, and heal."""
        blow = Blow(fault, time.monotonic())
        if fault.role == "client":
            self._strike_client(fault)
        else:
            child = self._deployment.children[fault.victim]
            (child.kill if fault.how == "kill" else child.pause)()
            time.sleep(fault.pause_s)
            (child.start if fault.how == "kill" else child.resume)()
        blow.healed_s = time.monotonic()
        return blow

    def _strike_client(self, fault: Fault) -> None:
        target = self._clients[TARGET]
        if fault.how == "kill":
            target.kill()
            time.sleep(fault.pause_s)
            self._clients[TARGET] = self._start(TARGET)
            return
        target.signal(signal.SIGSTOP)
        time.sleep(fault.pause_s)
        target.signal(signal.SIGCONT)

    def _until_whole(self, blow: Blow) -> None:
        try:
            self._clients[TARGET].wait(_HANG_S)
        except Ended:
            self._replace(TARGET, blow)
        self._deployment.until_up()
        for name in (TARGET, BESIDE):
            self._until_right(name, blow)
        blow.whole_s = time.monotonic()

    def _until_right(self, name: str, blow: Blow | None) -> None:
        """Wait until a round of deeds brings right numbers only."""
        deadline_s = time.monotonic() + _WHOLE_S
        while True:
            client = self._clients[name]
            try:
                if client.ask("check", _HANG_S):
                    return
            except Ended:
                self._replace(name, blow)
            if time.monotonic() > deadline_s:
                raise Hang(f"{name} does not get right numbers: {client.calls[-3:]}")
            time.sleep(0.1)

    def _replace(self, name: str, blow: Blow | None) -> None:
        """Start another client for one that jaxlib ended with its connection. Raises Ended."""
        gone = self._clients[name]
        cut = blow is not None and blow.fault.cuts(own=name == TARGET)
        last = gone.log.read_text(errors="replace")
        if not (cut and _JAXLIB_ENDS in last):
            raise Ended(f"{name} ended by itself: {gone.calls[-1:]}")
        logger.warning("jaxlib ended a client in %s:\n%s", gone.calls[-1:], last[-_LAST_WORDS:])
        gone.kill()
        self._ended += 1
        self._clients[name] = self._start(name)
        self._calls[name].append(self._clients[name].calls)

    def _chapter(self, blow: Blow, verdict: Verdict) -> Chapter:
        children = self._deployment.children.items()
        now = {role: held(child.pid) for role, child in children}
        lines = self._shown()
        return Chapter(
            blow,
            verdict,
            now,
            len(lines),
            sum(line["handles"] for line in lines),
            sum(line["buffer_bytes"] for line in lines),
            sum(client.arrays for client in self._clients.values()),
            self._pressure.share(),
            self._ended,
        )

    def _shown(self) -> list[dict[str, Any]]:
        """Return the clients of the status page, which may be behind for a moment."""
        deadline_s = time.monotonic() + _STALE_S
        while True:
            clients = self._deployment.status()["clients"].values()
            lines = [line for each in clients for line in each]
            quiet = len(lines) == len(self._clients) and not any(
                line["buffer_bytes"] for line in lines
            )
            if quiet or time.monotonic() > deadline_s:
                return lines
            time.sleep(0.1)

    def _start(self, name: str) -> ClientProcess:
        self._starts += 1
        return ClientProcess(
            f"{name} {self._starts}",
            self._deployment.proxy_port,
            self._luck.randrange(2**31),
            self._folder,
        )


@contextmanager
def told(deployment: Deployment, folder: Path, luck: random.Random) -> Iterator[Story]:
    """Begin a story, and end its clients whatever happens."""
    story = Story(deployment, folder, luck)
    try:
        story.begin()
        yield story
    finally:
        story.close()
