"""Follows the ready replicas of one model through Saxml's WatchLoc.

`apply` is pure: a set and an answer give the next set and its changes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sax.errors import DeadlineExceeded, NotFound, SaxError
from sax.proto import admin_pb2
from sax.types import CanaryShare
from sax.wire.models import decode_share

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 3.0


class Change(StrEnum):
    """Kind of change to the set."""

    RESET = "reset"  # drop all; the full set follows
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change of the ready replicas; str() is a line of `sax watch`."""

    change: Change
    address: str = ""

    def __str__(self) -> str:
        sign = {Change.RESET: "Reset", Change.ADDED: "+ ", Change.REMOVED: "- "}[self.change]
        return sign + self.address


@dataclass(frozen=True, slots=True)
class Watched:
    """The ready replicas as of one admin's answer."""

    admin_server_id: str = ""  # admin that issued the seqno
    seqno: int = 0
    ready: frozenset[str] = frozenset()
    # Ready according to the previous admin. A restarted admin starts with an empty set until its
    # servers report again, while the replicas keep serving.
    former: frozenset[str] = frozenset()
    canary: CanaryShare | None = None  # None: all are of one version

    @property
    def usable(self) -> frozenset[str]:
        """Addresses for requests: the ready replicas, or the former ones while there are none."""
        return self.ready or self.former


class WatchSource(Protocol):
    """Source of WatchLoc answers."""

    async def watch_loc(self, request: admin_pb2.WatchLocRequest) -> admin_pb2.WatchLocResponse:
        """Return once something changed. Raises NotFound; DeadlineExceeded when nothing did."""
        ...


def apply(
    watched: Watched, answer: admin_pb2.WatchLocResponse
) -> tuple[Watched, tuple[WatchEvent, ...]]:
    """Return the set after an answer, and the events that lead to it."""
    new_admin = answer.admin_server_id != watched.admin_server_id
    reset = new_admin or answer.result.has_fullset
    ready = set[str]() if reset else set(watched.ready)
    events = [WatchEvent(Change.RESET)] if reset else []
    for event in _changes(answer.result):
        events.append(event)
        if event.change is Change.ADDED:
            ready.add(event.address)
        else:
            ready.discard(event.address)
    former = watched.usable if new_admin else watched.former
    after = Watched(
        admin_server_id=answer.admin_server_id,
        seqno=answer.result.next_seqno,
        ready=frozenset(ready),
        former=frozenset() if ready else former,
        # While an admin that was restarted finds no replica, the former ones stay divided.
        canary=decode_share(answer) or (None if ready else watched.canary),
    )
    return after, tuple(events)


def _changes(result: admin_pb2.WatchResult) -> list[WatchEvent]:
    """List the full set, if there is one, then the changelog."""
    added = [WatchEvent(Change.ADDED, address) for address in result.values]
    log = [
        WatchEvent(Change.ADDED, mutation.addition)
        if mutation.WhichOneof("kind") == "addition"
        else WatchEvent(Change.REMOVED, mutation.deletion)
        for mutation in result.changelog
    ]
    return added + log


async def follow(
    source: WatchSource, model_id: str
) -> AsyncGenerator[tuple[Watched, tuple[WatchEvent, ...]], None]:
    """Yield each answer's set and events, indefinitely.

    Raises NotFound if the model is not (or no longer) published, and any error of the first call;
    later calls are retried.
    """
    watched = Watched()
    answered = False
    failures = 0
    while True:
        try:
            answer = await source.watch_loc(_question(model_id, watched))
        except NotFound:
            raise
        except DeadlineExceeded:
            continue  # connected, but nothing changed
        except SaxError as exc:
            if not answered:
                raise
            failures += 1
            logger.info("watching %s failed, keeping the last known replicas: %s", model_id, exc)
            await asyncio.sleep(pause_s(failures))
            continue
        watched, events = apply(watched, answer)
        answered, failures = True, 0
        yield watched, events
        if not events:
            # Do not poll in a tight loop when the admin answers without changes.
            await asyncio.sleep(pause_s(1))


def pause_s(failures: int, longest_s: float = LONGEST_PAUSE_S) -> float:
    """Return the seconds to wait after consecutive failures: exponential backoff, full jitter."""
    return random.uniform(0.05, max(0.1, min(longest_s, 0.1 * 2 ** min(failures, 10))))


def _question(model_id: str, watched: Watched) -> admin_pb2.WatchLocRequest:
    return admin_pb2.WatchLocRequest(
        model_id=model_id, admin_server_id=watched.admin_server_id, seqno=watched.seqno
    )
