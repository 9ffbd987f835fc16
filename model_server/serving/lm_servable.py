"""A loaded language model: its engine, and the receiver of each sequence; and its adapters.

Bridges the engine's thread and the event loop with at most one crossing per engine step, for any
number of sequences.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from model_server.engine.engine import Announce, Engine, EngineRequest, SequenceUpdate
from model_server.engine.failure import DevicesLost
from model_server.engine.islands.engine_group import EngineGroup
from model_server.engine.islands.split_group import SplitGroup
from model_server.engine.outbox import Deliver
from model_server.engine.running.ops import Runner
from model_server.engine.types import RowResult
from model_server.engine.watchdog import OnHang
from model_server.islands import BACKEND
from model_server.loading.loaded import Loaded
from model_server.loading.loaded_batches import LoadedBatches
from model_server.serving.batch_servable import BatchServable
from model_server.serving.lm_figures import LmFigures, Spans
from model_server.serving.method_stats import MethodStats
from model_server.serving.weight_changes import WeightChanges
from sax.errors import NotLoaded, ReplicaLost, SaxError

logger = logging.getLogger(__name__)

Receive = Callable[[SequenceUpdate], None]
L = TypeVar("L", bound=LoadedBatches)
_RECENT_STEPS = 10


class LmServable(LmFigures):
    """Runs on the event loop; only `_deliver` runs on the engine's thread."""

    kind = "a language model"

    def __init__(
        self,
        model_id: str,
        loaded: Loaded,
        on_hang: OnHang | None = None,
        engine: Engine | EngineGroup | None = None,
    ) -> None:
        """on_hang: called on another thread if a step does not finish. engine: of another model,
        that delivers to that; None: its own.
        """
        self.model_id = model_id
        self.loaded = loaded
        self.methods = {name: MethodStats() for name in loaded.methods}
        self.recent_batch_sizes: deque[int] = deque(maxlen=_RECENT_STEPS)
        self.prompt_tokens = 0
        self.cancelled = 0
        self.resumed = 0  # answers that other replicas began
        self.first_tokens = Spans()  # from arrival to the first token
        self.token_intervals = Spans()  # mean per token after the first, of ended answers
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._receivers: dict[int, Receive] = {}
        self._lost: ReplicaLost | None = None
        self._engine = engine or _engine_of(loaded, self._deliver, on_hang)
        self.weights = WeightChanges(model_id, loaded, self._engine)
        # Beside generating
        beside = (each for each in (loaded.embedder, loaded.gradients) if each is not None)
        self._beside = [BatchServable(model_id, each) for each in beside]
        if loaded.note:
            logger.warning("%s: %s", model_id, loaded.note)
        if loaded.kernels:
            logger.info("%s: kernels: %s", model_id, loaded.kernels)

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

    def end(self, sequence: int, error: SaxError) -> None:
        """Cancel a sequence and tell its receiver why."""
        receive = self._receivers.get(sequence)
        self.cancel(sequence)
        if receive is not None:
            receive(SequenceUpdate(sequence, RowResult(), error=error))

    def lose(self, error: ReplicaLost) -> None:
        """Fail all waiting requests now and refuse new ones: a host of this replica is lost.

        The engine may wait for that host forever, so it is not called.
        """
        self._lost = error
        receivers, self._receivers = self._receivers, {}
        for sequence, receive in receivers.items():
            receive(SequenceUpdate(sequence, RowResult(), error=error))

    def part(self, kind: type[L]) -> BatchServable[L] | None:
        """Return what serves such calls beside generating; None: it was not published for them."""
        found = (each.part(kind) for each in self._beside)
        return next((each for each in found if each is not None), None)

    async def close(self, drain_s: float) -> None:
        self.closing = True
        closing = (each.close(drain_s) for each in self._beside)
        await asyncio.gather(asyncio.to_thread(self._engine.drain, drain_s), *closing)
        if self.loaded.islands is not None:
            BACKEND.forget(self.loaded.islands)
            self.loaded.islands.end()
        # The engine ends what still runs as "cancelled", and those updates arrive before this
        # call returns, so no caller is left waiting.
        await asyncio.to_thread(self._engine.close)
        if self.loaded.islands is not None:
            await asyncio.to_thread(self.loaded.islands.close)

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        # The loop is closed if the process ends first; then there are no callers left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hand_out, updates)

    def _hand_out(self, updates: list[SequenceUpdate]) -> None:
        self.recent_batch_sizes.append(len({update.sequence for update in updates}))
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


def _engine_of(loaded: Loaded, deliver: Deliver, on_hang: OnHang | None) -> Engine | EngineGroup:
    """Return a model's engine, or those of its islands, which come and go by themselves."""

    def make(runner: Runner, deliver: Deliver, **shared: Any) -> Engine:
        times, limit_s = loaded.step_times, loaded.step_limit_s
        return Engine(runner, deliver, times, limit_s, on_hang, loaded.stream_interval_s, **shared)

    islands = loaded.islands
    if islands is None:
        return make(loaded.runner, deliver)

    def lost(island: str, failure: DevicesLost) -> None:
        islands.lost(island, group.add, lambda: group.give_up(_nowhere(failure)))

    if (moves := islands.moves) is None:
        group = EngineGroup(deliver, make, lost)
    else:
        limits = loaded.runner.limits
        group = SplitGroup(deliver, limits, moves.prompts, moves, make, lost)
    for island, lanes in islands.lanes.items():
        group.add(island, *lanes)
    BACKEND.listen(islands, lambda why: group.lose(DevicesLost(why)))
    islands.watch(lambda island: group.lose(DevicesLost("it does not answer"), island))
    return group


def _nowhere(failure: DevicesLost) -> ReplicaLost:
    return ReplicaLost(f"all devices of this replica are lost ({failure}); try another replica")
