"""BackgroundRuns: responses that this gateway answers while their clients are away.

Each gives a sign of life on the store every few seconds. A response whose signs stop is found by
every gateway that shares the store, and fails with the reason, so that none is lost in silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from http_gateway.access import RequestRecord
from http_gateway.limits import Limiter
from http_gateway.openai.responses.stored import Place, StoredResponse, StoredResponses
from http_gateway.openai.stored import MEASURE_S, KeptSpace
from http_gateway.sse import stop
from sax.auth.acl import Principal, caller
from sax.errors import QueueFull, SaxError, Unavailable
from sax.storage.object_store import StoreUnavailable

log = logging.getLogger(__name__)

GONE = (
    "the gateway that answered this response is gone: send the request again; its input is in "
    "/v1/responses/{id}/input_items"
)
_STOPPED = "the gateway was stopped before the answer was complete: send the request again"
_RETRY_S = 5.0
_TRIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundPace:
    beat_s: float = 5.0
    look_s: float = 15.0  # between looks at the signs of life of other gateways
    idle_s: float = 30.0  # and while there are none: one list of names
    patience_s: float = 60.0  # without a sign of life, by the watcher's own clock
    grace_s: float = 10.0  # at the end of a gateway, for answers that are nearly there
    most: int = 256  # at once
    most_of_owner: int = 32


class BackgroundRuns:
    def __init__(
        self,
        stored: StoredResponses,
        space: KeptSpace,
        limiter: Limiter,
        pace: BackgroundPace | None = None,
    ) -> None:
        self._stored = stored
        self._space = space
        self._limiter = limiter
        self._pace = pace or BackgroundPace()
        self._runs: dict[Place, asyncio.Task[None]] = {}
        self._answering: set[Place] = set()  # of those: whose end nobody can have seen
        self._outcomes: dict[Place, Callable[[], StoredResponse]] = {}
        self._seen: dict[Place, tuple[bytes, float]] = {}  # last sign of life, and since when

    async def start(
        self,
        kept: StoredResponse,
        work: Coroutine[Any, Any, None],
        outcome: Callable[[], StoredResponse],
    ) -> None:
        """Run `work` from now on, as the caller. The response is durable on return.

        outcome: the response as it is, once `work` has ended or was cancelled. Raises QueueFull,
        StoreUnavailable.
        """
        try:
            self._check_room(kept)
            place = await self._stored.begin(kept)
        except BaseException:
            work.close()
            raise
        self._outcomes[place] = outcome
        self._answering.add(place)
        self._runs[place] = asyncio.create_task(self._run(place, kept, work))
        self._runs[place].add_done_callback(lambda _: self._forget(place))

    def _forget(self, place: Place) -> None:
        del self._runs[place], self._outcomes[place]
        self._answering.discard(place)

    def _check_room(self, kept: StoredResponse) -> None:
        owner = self._stored.place(kept.id)[0]
        of_owner = sum(place[0] == owner for place in self._answering)
        if len(self._answering) >= self._pace.most or of_owner >= self._pace.most_of_owner:
            raise QueueFull(
                f"{of_owner} responses of this key are answered in the background here, and "
                f"{len(self._answering)} of all; at most {self._pace.most_of_owner} and "
                f"{self._pace.most} are at once: wait for one to end",
                param="background",
                retry_after_s=_RETRY_S,
            )

    async def cancel(self, kept: StoredResponse) -> None:
        """End a response, wherever it runs. Raises StoreUnavailable."""
        place = self._stored.place(kept.id)
        if place in self._runs:
            kept = self._outcomes[place]()  # with what there is of an answer
            await stop(self._runs[place])
        await self._stored.finish(place, kept.ended("cancelled"))

    async def _run(
        self, place: Place, kept: StoredResponse, work: Coroutine[Any, Any, None]
    ) -> None:
        record = replace(RequestRecord.current(), prompt_tokens=0, completion_tokens=0, span=None)
        record.enter()
        over = asyncio.Event()
        beats = asyncio.create_task(self._beat_on(place, over, asyncio.current_task()))
        try:
            # Cancelled by its client, here or elsewhere, or as the gateway ends, it is finished by
            # `cancel` or `_end`.
            try:
                ended = await self._outcome(place, kept, work)
            finally:
                # A sign of life that is on its way is awaited, not cancelled: the store might take
                # it after the end, and it would be of a run that is over.
                over.set()
                await beats
            self._answering.discard(place)  # who sees the end may begin another at once
            await self._finish(place, ended)
        finally:
            self._charge(caller(), record.tokens)

    async def _outcome(
        self, place: Place, kept: StoredResponse, work: Coroutine[Any, Any, None]
    ) -> StoredResponse:
        try:
            await work
        except SaxError as error:
            return kept.ended("failed", error.text)
        except Exception:
            log.exception("response %s failed", place[1])
            return kept.ended("failed", RequestRecord.current().internal_error)
        return self._outcomes[place]()

    async def _finish(self, place: Place, kept: StoredResponse) -> None:
        """Store the end, again while the store fails; if it does for long, `watch` sees to it."""
        for number in range(_TRIES):
            try:
                return await self._stored.finish(place, kept)
            except StoreUnavailable as error:
                log.warning("the end of response %s is not stored yet: %s", place[1], error)
                await asyncio.sleep(0.25 * 2**number)

    def _charge(self, key: Principal, tokens: int) -> None:
        """Count the tokens against the key's limits; the request itself was counted before."""
        if key.limits.counted:
            self._limiter.charge(key, tokens)

    async def _beat_on(
        self, place: Place, over: asyncio.Event, run: asyncio.Task[None] | None
    ) -> None:
        """Give signs of life until the run is over; cancel one that another gateway has ended."""
        number = 0
        while not await _is_set_within(over, self._pace.beat_s):
            number += 1
            try:
                if await self._stored.has_ended(place):
                    if run is not None:
                        run.cancel()
                    return
                await self._stored.beat(place, number)
            except StoreUnavailable as error:
                log.warning("response %s gives no sign of life: %s", place[1], error)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Look after responses, those of other gateways too, until the end of the block."""
        tasks: list[asyncio.Task[None]] = []
        if self._stored.on:
            tasks = [asyncio.create_task(self._watch_on()), asyncio.create_task(self._measure_on())]
        try:
            yield
        finally:
            await stop(*tasks)
            await self._end()

    async def _end(self) -> None:
        """Let answers that are nearly there come to their end; the others fail."""
        left = dict(self._runs)
        if left:
            await asyncio.wait(left.values(), timeout=self._pace.grace_s)
        for place, run in left.items():
            if not run.done():
                await stop(run)
                with contextlib.suppress(StoreUnavailable):
                    await self._stored.give_up(place, _STOPPED)

    async def _watch_on(self) -> None:
        while True:
            found = True
            try:
                found = await self.watch()
            except Unavailable as error:
                log.warning("responses in the background are not watched: %s", error)
            await asyncio.sleep(self._pace.look_s if found else self._pace.idle_s)

    async def watch(self, now_s: float | None = None) -> bool:
        """Let responses fail whose signs of life have stopped; False if other gateways run none.
        now_s: by `time.monotonic`."""
        now_s = time.monotonic() if now_s is None else now_s
        found = await self._stored.open(self._runs.keys())
        seen = {place: self._seen.get(place) for place in found}
        self._seen = {
            place: old if old is not None and old[0] == found[place] else (found[place], now_s)
            for place, old in seen.items()
        }
        for place, (_, since_s) in self._seen.items():
            if now_s - since_s >= self._pace.patience_s:
                log.warning("response %s is given up: its gateway is gone", place[1])
                await self._stored.give_up(place, GONE.format(id=place[1]))
        return bool(found)

    async def _measure_on(self) -> None:
        while True:
            try:
                await self._space.measure()
            except Unavailable as error:
                log.warning("what keys store is not measured: %s", error)
            await asyncio.sleep(MEASURE_S)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, at most so long, and return whether it was set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
