"""A loaded LoRA adapter as a model with its base's engine."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter

from msgspec.structs import replace

from model_server.engine.engine import Announce, EngineRequest, EngineStats, SequenceUpdate
from model_server.loading.loaded import LoadedAdapter
from model_server.serving.lm_servable import LmServable, Receive
from sax.errors import NotLoaded, ReplicaLost, ShuttingDown


class AdapterServable(LmServable):
    """A LoRA adapter as a model of its own: its name, methods and end; its base's engine.

    Its sequences are the base's with a place beside them.
    """

    kind = "an adapter of a language model"

    def __init__(self, model_id: str, adapter: LoadedAdapter, base: LmServable) -> None:
        super().__init__(model_id, adapter.loaded, engine=base._engine)
        self._base = base
        self.weights = base.weights
        self._place = adapter.place
        # Of this load: places are used again, and pages of another adapter's must not be found.
        self._salt = f"adapter:{secrets.token_hex(8)}:"
        self._held = adapter.runner
        self._live: dict[int, bool] = {}  # by sequence: a token has come
        self._ended = asyncio.Event()  # set whenever nothing is live
        self._totals = Counter[str]()

    def submit(
        self,
        engine_request: EngineRequest,
        receive: Receive,
        *,
        reserved: bool = False,
        announce: Announce | None = None,
    ) -> int:
        if self.closing:
            raise ShuttingDown(f"{self.model_id} is being unloaded on this replica; try another")
        sequence = self._base.submit(
            replace(engine_request, adapter=self._place, salt=f"{self._salt}{engine_request.salt}"),
            lambda update: self._receive(update, receive),
            reserved=reserved,
            announce=announce,
        )
        self._live[sequence] = False
        self._ended.clear()
        self.prompt_tokens += len(engine_request.prompt)
        return sequence

    def cancel(self, sequence: int) -> None:
        if sequence in self._live:
            self._base.cancel(sequence)
            self._end(sequence, "cancelled")

    def lose(self, error: ReplicaLost) -> None:
        """Refuse new requests; the base fails those that wait."""
        self._lost = error

    @property
    def memory(self) -> int:
        """Its place is part of its base's memory."""
        return 0

    @property
    def failure(self) -> str | None:
        if self._base.closing:
            return f"its base {self._base.model_id} was unloaded here"
        return self._base.failure

    def stats(self) -> EngineStats:
        """Return its own sequences and tokens; steps and pages are its base's."""
        running = sum(self._live.values())
        base = self._base.stats()
        return EngineStats(
            running=running,
            waiting=len(self._live) - running,
            slots=base.slots,
            slots_used=running,
            pages=base.pages,
            pages_used=0,
            pages_cached=0,
            steps=0,
            tokens=self._totals["tokens"],
            prefill_tokens=0,
            decode_tokens=0,
            preemptions=0,
            prefix_queries=0,
            prefix_hits=0,
            prefix_evictions=0,
            draft_tokens=0,
            draft_tokens_accepted=0,
            busy_s=0.0,
            finished=self._totals["finished"],
            cancelled=self._totals["cancelled"],
        )

    async def close(self, drain_s: float) -> None:
        """Let running requests finish within the time, then free the place."""
        self.closing = True
        if self._live:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), drain_s)
        for sequence in list(self._live):
            self._base.end(sequence, self._unloaded())
        self._held.close()

    def _receive(self, update: SequenceUpdate, receive: Receive) -> None:
        if update.result.token is not None:
            self._live[update.sequence] = True
            self._totals["tokens"] += 1
        if update.finish is not None or update.error is not None:
            self._end(update.sequence, "finished" if update.error is None else "cancelled")
        if isinstance(update.error, NotLoaded):
            update = replace(update, error=self._unloaded())
        receive(update)

    def _end(self, sequence: int, how: str) -> None:
        self._live.pop(sequence, None)
        self._totals[how] += 1
        if not self._live:
            self._ended.set()

    def _unloaded(self) -> NotLoaded:
        base = f", with its base {self._base.model_id}," if self._base.closing else ""
        return NotLoaded(f"{self.model_id}{base} was unloaded before this request was done")
