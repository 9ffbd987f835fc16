"""Clients that publish, update, roll back and unpublish at random, and what they heard.

Each call is made in a name of its own, so that its record in the log is known again. A call makes
one record at most: specs are whole, and what was sent is never sent twice.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Mapping

from sax.auth.credentials import acting_as
from sax.client.admin import Admin
from sax.client.async_client import AsyncClient
from sax.errors import (
    AdminUnavailable,
    DeadlineExceeded,
    InvalidRequest,
    ModelExists,
    NotFound,
    NotLeading,
    StaleRevision,
)
from sax.proto import admin_pb2
from sax.types import ModelSpec
from sax.wire.models import encode_spec
from tests.simulation import history as h
from tests.simulation.history import Call, History
from tests.tools.chaos.cell import CELL
from tests.tools.chaos.figures import Figures

NOT_DONE = (ModelExists, NotFound, StaleRevision, InvalidRequest, NotLeading)
NOT_KNOWN = (AdminUnavailable, DeadlineExceeded)
PROBE = f"{CELL}/probe"
_CALLS_A_SECOND = 12  # at most, of one client
_KINDS = (h.PUBLISH, h.PUBLISH, h.UPDATE, h.UPDATE, h.ROLLBACK, h.UNPUBLISH)
_ANEW = 0.4  # the share of calls that come from a new process
_PROBE_TIMEOUT_S = 1.0
_PROBE_GAP_S = 0.1


def callers(clients: int, seconds: float) -> list[str]:
    """The name of every call that a run of so many seconds can make, the probe's among them."""
    count = int(seconds * _CALLS_A_SECOND)
    return [f"{who}-{n}" for who in [*_names(clients), "probe"] for n in range(count)]


def _names(clients: int) -> list[str]:
    return [f"client{number}" for number in range(clients)]


class Caller:
    """One client with its connections. Use it in one event loop and close it there."""

    def __init__(self, addresses: str, tokens: Mapping[str, str], history: History) -> None:
        self._addresses = addresses
        self._client = AsyncClient(addresses)
        self._admin = Admin(addresses)  # for updates: the client's own read before they write
        self._tokens = tokens
        self._history = history

    async def close(self) -> None:
        await self._client.close()
        await self._admin.close()

    async def make_anew(
        self, by: str, kind: str, spec: ModelSpec, timeout_s: float, luck: random.Random
    ) -> None:
        """The same as a new process does it that knows one admin server, whatever that one is:
        deposed without knowing it yet, cut off, or just started."""
        one = Caller(luck.choice(self._addresses.split(",")), self._tokens, self._history)
        try:
            await one.make(by, kind, spec, timeout_s)
        finally:
            await one.close()

    async def make(self, by: str, kind: str, spec: ModelSpec, timeout_s: float) -> Call:
        """One call, noted with what came of it. Raises what no failure explains."""
        call = self._history.begin(by, kind, spec.model_id, spec)
        try:
            with acting_as(self._tokens[by]):
                await self._ask(kind, spec, timeout_s)
        except NOT_DONE as exc:
            self._history.end(call, "refused", type(exc).__name__)
        except NOT_KNOWN as exc:
            self._history.end(call, "unknown", type(exc).__name__)
        else:
            self._history.end(call, "done")
        return call

    async def _ask(self, kind: str, spec: ModelSpec, timeout_s: float) -> None:
        client, model_id = self._client, spec.model_id
        if kind == h.PUBLISH:
            await client.publish(
                model_id, spec.model_path, spec.checkpoint, spec.replicas, timeout_s=timeout_s
            )
        elif kind == h.UPDATE:
            request = admin_pb2.UpdateRequest(model=encode_spec(spec))
            await self._admin.change("Update", request, admin_pb2.UpdateResponse, timeout_s)
        elif kind == h.ROLLBACK:
            await client.rollback(model_id, timeout_s=timeout_s)
        else:
            await client.unpublish(model_id, timeout_s=timeout_s)


async def call_at_random(
    caller: Caller, number: int, luck: random.Random, models: int, rate: float, until_s: float
) -> None:
    """One client's calls."""
    name = _names(number + 1)[number]
    for count in itertools.count():
        await asyncio.sleep(max(luck.expovariate(rate), 1 / _CALLS_A_SECOND))
        if time.monotonic() > until_s:
            return
        by = f"{name}-{count}"
        spec = ModelSpec(
            model_id=f"{CELL}/m{luck.randrange(models)}",
            model_path="fake",
            checkpoint=f"/{by}",
            replicas=luck.randint(0, 2),
        )
        kind, timeout_s = luck.choice(_KINDS), luck.uniform(1.5, 6.0)
        if luck.random() < _ANEW:
            await caller.make_anew(by, kind, spec, timeout_s, luck)
        else:
            await caller.make(by, kind, spec, timeout_s)


async def probe(caller: Caller, figures: Figures, until_s: float) -> None:
    """Change something all the time, so that it shows for how long nobody could."""
    for count in itertools.count():
        await asyncio.sleep(_PROBE_GAP_S)
        asked_s = time.monotonic()
        if asked_s > until_s:
            return
        by = f"probe-{count}"
        spec = ModelSpec(model_id=PROBE, model_path="fake", checkpoint=f"/{by}", replicas=0)
        kind = h.UNPUBLISH if count % 2 else h.PUBLISH
        call = await caller.make(by, kind, spec, _PROBE_TIMEOUT_S)
        if call.outcome == "done":
            figures.acknowledged(asked_s)
