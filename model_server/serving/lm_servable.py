"""A loaded language model: its engine, and the receiver of each sequence.

Bridges the engine's thread and the event loop with one crossing per engine step, for any number of
sequences.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from model_server.engine.engine import (
    Announce,
    Engine,
    EngineRequest,
    EngineStats,
    SequenceUpdate,
)
from model_server.engine.failure import as_load_error
from model_server.engine.timing.watchdog import OnHang
from model_server.engine.types import RowResult
from model_server.loading.loaded import Loaded
from model_server.serving.embed_servable import EmbedServable
from model_server.serving.gradient_queue import GradientQueue
from model_server.serving.method_stats import MethodStats
from sax.errors import NotLoaded, ReplicaLost
from sax.memory_parts import MemoryParts

logger = logging.getLogger(__name__)

Receive = Callable[[SequenceUpdate], None]
_RECENT_STEPS = 10


class LmServable:
    """Runs on the event loop; only `_deliver` runs on the engine's thread."""

    kind = "a language model"

    def __init__(self, model_id: str, loaded: Loaded, on_hang: OnHang | None = None) -> None:
        """on_hang: called on another thread if a step does not finish."""
        self.model_id = model_id
        self.loaded = loaded
        self.methods = {name: MethodStats() for name in loaded.methods}
        self.recent_batch_sizes: deque[int] = deque(maxlen=_RECENT_STEPS)
        self.prompt_tokens = 0
        self.cancelled = 0
        self._loop = asyncio.get_running_loop()
        self._receivers: dict[int, Receive] = {}
        self._lost: ReplicaLost | None = None
        self._engine = Engine(
            loaded.runner, self._deliver, loaded.step_times, loaded.step_limit_s, on_hang
        )
        # Beside generating; None: it was not published for that.
        self.embedder = loaded.embedder and EmbedServable(model_id, loaded.embedder)
        self.gradients = loaded.gradients and GradientQueue(model_id, loaded.gradients)
        if loaded.note:
            logger.warning("%s: %s", model_id, loaded.note)

    def submit(
        self,
        engine_request: EngineRequest,
        receive: Receive,
        *,
        reserved: bool = False,
        announce: Announce | None = None,
    ) -> int:
        """Queue a sequence and return its id; `announce` gets it before any step has the sequence.

        `receive` gets its updates on the event loop; the last has a finish or an error. Raises
        QueueFull, PromptTooLong, ShuttingDown, ReplicaLost.
        """
        if self._lost is not None:
            raise self._lost
        sequence = self._engine.submit(engine_request, reserved=reserved, announce=announce)
        # No update can be lost: `_hand_out` cannot run before this callback returns.
        self._receivers[sequence] = receive
        self.prompt_tokens += len(engine_request.prompt)
        return sequence

    def reserve(self, engine_request: EngineRequest) -> None:
        """Hold a place in the queue until `submit` or `release`. Raises as `submit` does."""
        self._engine.reserve(engine_request)

    def release(self, engine_request: EngineRequest) -> None:
        """Give up a reserved place."""
        self._engine.release(engine_request.account)

    def cancel(self, sequence: int) -> None:
        """Free the sequence's slot and pages; its receiver gets no more updates."""
        if self._receivers.pop(sequence, None) is not None:
            self._engine.cancel(sequence)
            if self.loaded.disaggregation is not None:
                self.loaded.disaggregation.runner.forget(sequence)

    def has_slot(self, sequence: int) -> bool:
        """Return False while a sequence waits in the queue, and once it has ended."""
        return self._engine.has_slot(sequence)

    def lose(self, error: ReplicaLost) -> None:
        """Fail all waiting requests now and refuse new ones: a host of this replica is lost.

        The engine may wait for that host forever, so it is not called.
        """
        self._lost = error
        receivers, self._receivers = self._receivers, {}
        for sequence, receive in receivers.items():
            receive(SequenceUpdate(sequence, RowResult(), error=error))

    @property
    def note(self) -> str:
        return self.loaded.note

    @property
    def memory(self) -> int:
        """Bytes of weights, KV pages and workspace."""
        return self.loaded.memory

    @property
    def parts(self) -> MemoryParts:
        return self.loaded.parts

    @property
    def running(self) -> int:
        """Sequences with a slot."""
        return self.stats().running

    @property
    def waiting(self) -> int:
        return self.stats().waiting

    @property
    def failure(self) -> str | None:
        failed = self._lost or self._engine.failed
        return f"the engine stopped: {as_load_error(failed).text}" if failed else None

    def stats(self) -> EngineStats:
        return self._engine.stats()

    async def close(self, drain_s: float) -> None:
        beside = [each for each in (self.embedder, self.gradients) if each is not None]
        closing = (each.close(drain_s) for each in beside)
        await asyncio.gather(asyncio.to_thread(self._engine.drain, drain_s), *closing)
        # The engine ends what still runs as "cancelled", and those updates arrive before this
        # call returns, so no caller is left waiting.
        await asyncio.to_thread(self._engine.close)

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        # The loop is closed if the process ends first; then there are no callers left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hand_out, updates)

    def _hand_out(self, updates: list[SequenceUpdate]) -> None:
        self.recent_batch_sizes.append(len(updates))
        for update in updates:
            receive = self._receivers.get(update.sequence)
            if receive is None:
                continue  # cancelled a moment ago
            if update.finish is not None or update.error is not None:
                del self._receivers[update.sequence]
            if update.finish == "cancelled":  # not by a caller: the engine was closed
                update = replace(update, error=self._unloaded(), finish=None)
            receive(update)

    def _unloaded(self) -> NotLoaded:
        return NotLoaded(f"{self.model_id} was unloaded before this request was done")
