"""Remote prefill for single requests; falls back to local prefill on any error.

The first token goes to the caller as soon as the prefill server has it. Then the pages are fetched
and the sequence joins the engine with them; without them the engine recomputes prompt and token, so
the output is the same. Runs on the event loop; pages are fetched on threads.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from model_server.disaggregation.disaggregation import KEYS, Disaggregation, is_remote
from model_server.disaggregation.handed_pages import handed_over
from model_server.disaggregation.handoff import KvHandoff
from model_server.disaggregation.prefill_servers import PrefillServer, PrefillServers
from model_server.engine.engine import EngineRequest, SequenceUpdate
from model_server.engine.parts.thinking import ThinkingBudget
from model_server.engine.registry import finish_of
from model_server.engine.types import RowResult
from model_server.serving.answers.running_request import RunningRequest, of_request
from sax.errors import SaxError, ShuttingDown

logger = logging.getLogger(__name__)

_FETCH_S = 10.0  # pages that take longer are recomputed
_CLOSE_S = 1.0
_GOING = "this replica is going away; try another"
_FETCHERS = 4  # concurrent fetches; they share one network


class RemotePrefill:
    """Starts remote prefills; one per process that has prefill servers."""

    def __init__(self, servers: PrefillServers) -> None:
        self._servers = servers
        self._threads = ThreadPoolExecutor(_FETCHERS, thread_name_prefix="fetch pages")
        self._tasks: set[asyncio.Task[None]] = set()  # keeps them alive: asyncio holds tasks weakly

    def take(self, running: RunningRequest, engine_request: EngineRequest) -> bool:
        """Take over this request; returns False if its prompt must be computed locally.

        From here on the request has a place in the engine's queue. Raises like a submission.
        """
        disaggregation = running.servable.loaded.disaggregation
        if disaggregation is None or not disaggregation.transfers.takes:
            return False
        if _is_local(engine_request):
            return False
        if not is_remote(len(engine_request.prompt), running.servable.loaded.runner.limits):
            return False
        server = self._servers.choose(running.servable.model_id)
        count = handed_over(running.servable.loaded.runner.limits, len(engine_request.prompt))
        key = secrets.randbelow(KEYS - 1) + 1
        if server is None or not disaggregation.transfers.reserve(key, count):
            disaggregation.moved.computed_here += 1
            return False
        try:
            running.reserve(engine_request)
        except BaseException:
            disaggregation.transfers.drop(key)
            raise
        running.follow(self._start(_RemoteRequest(self, server, running, engine_request, key).go()))
        return True

    def release(self, server: PrefillServer, key: int) -> None:
        """Release the pages on the prefill server, in the background."""
        self._start(server.release(key))

    def fetch(
        self, disaggregation: Disaggregation, key: int, handoff: KvHandoff
    ) -> asyncio.Future[None]:
        """Fetch on a thread; continues even if the caller stops waiting."""
        wait_s = min(_FETCH_S, handoff.expires_s)
        fetch = disaggregation.transfers.fetch
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, fetch, key, handoff.addresses, wait_s)

    async def close(self) -> None:
        """Cancel pending requests after a short wait, so that prefill servers can be notified."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_local(asked: EngineRequest) -> bool:
    """Return True for a request that no other server can begin.

    It would choose the first token, without the grammar or a budget of no reasoning, or for a
    search that chooses several. Images are not sent along, and scores are made with the keys and
    values.
    """
    budget = asked.setting(ThinkingBudget)
    given = budget is not None and not budget.most
    scored = asked.score_from is not None
    return bool(asked.grammar or asked.beams or asked.answer or asked.media or scored or given)


class _RemoteRequest:
    """Remote prefill of one request, from its reservation to the engine's queue or its end."""

    def __init__(
        self,
        elsewhere: RemotePrefill,
        server: PrefillServer,
        running: RunningRequest,
        engine_request: EngineRequest,
        key: int,
    ) -> None:
        disaggregation = running.servable.loaded.disaggregation
        assert disaggregation is not None
        self._remote_prefill = elsewhere
        self._disaggregation = disaggregation
        self._server = server
        self._running = running
        self._submission = engine_request
        self._key = key
        self._asked = False  # pages may be held for us there
        self._kept = False  # the runner owns the pages

    async def go(self) -> None:
        """Raises nothing but CancelledError."""
        try:
            await self._go()
        except asyncio.CancelledError:  # by the caller, who is gone, or by `close`
            self._running.receive(SequenceUpdate(0, RowResult(), error=ShuttingDown(_GOING)))
            raise
        except SaxError as error:  # rejected by the engine
            self._running.receive(SequenceUpdate(0, RowResult(), error=error))
        except Exception:
            request_id = self._running.request_id
            logger.exception("remote prefill of a request failed%s", of_request(request_id))
            error = self._running.internal_error()
            self._running.receive(SequenceUpdate(0, RowResult(), error=error))
        finally:
            self._running.release()
            if not self._kept:
                self._disaggregation.transfers.drop(self._key)
            if self._asked:
                self._remote_prefill.release(self._server, self._key)

    async def _go(self) -> None:
        handoff = await self._ticket()
        if handoff is None:
            self._running.submit(self._submission)
            return
        assert handoff.first.token is not None
        ahead = replace(self._submission, answer=(handoff.first.token,))
        limits = self._running.servable.loaded.runner.limits
        self._running.receive(SequenceUpdate(0, handoff.first, finish_of(ahead, limits)))
        if self._running.over:
            return
        if not await self._fetched(handoff):
            self._running.submit(ahead)
            return
        token, runner = handoff.first.token, self._disaggregation.runner
        self._running.submit(
            replace(ahead, computed=True),
            announce=lambda sequence: runner.expect_import(sequence, self._key, token),
        )
        self._kept = True

    async def _ticket(self) -> KvHandoff | None:
        """Return the handoff, or None for local prefill."""
        model_id = self._running.servable.model_id
        self._asked = True
        try:
            return await self._server.ask(
                model_id, self._disaggregation.contract, self._submission, self._key
            )
        except SaxError:
            self._disaggregation.moved.computed_here += 1
            return None

    async def _fetched(self, handoff: KvHandoff) -> bool:
        """Fetch the pages; False if the engine must recompute prompt and first token."""
        model_id, moved = self._running.servable.model_id, self._disaggregation.moved
        began_s = time.monotonic()
        try:
            await self._remote_prefill.fetch(self._disaggregation, self._key, handoff)
        except SaxError as error:
            self._server.distrust(model_id, error)
            moved.computed_here += 1
            return False
        self._server.trust(model_id)
        moved.fetched += 1
        moved.fetched_bytes += self._disaggregation.bytes_of(len(self._submission.prompt))
        moved.fetch_s += time.monotonic() - began_s
        return True
