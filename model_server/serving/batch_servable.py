"""A loaded model that answers in batches: its queues, and the requests on their way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar, cast

from model_server.loading.loaded_batches import ONLY, LoadedBatches
from model_server.serving.batcher import Batcher, RunnerThread
from model_server.serving.method_stats import MethodStats
from model_server.serving.query_cost import BatchCost
from sax.activity import IDLE

_RECENT_BATCHES = 10

L = TypeVar("L", bound=LoadedBatches, covariant=True)
Other = TypeVar("Other", bound=LoadedBatches)


class BatchServable(Generic[L]):
    """Runs on the event loop; batches of all queues run on one thread, in turn."""

    note = ""
    kernels = ""
    activity = IDLE

    def __init__(self, model_id: str, loaded: L) -> None:
        self.model_id = model_id
        self.loaded = loaded
        self.kind = loaded.kind
        self.memory = loaded.memory
        self.parts = loaded.parts
        self.methods = {name: MethodStats() for name in loaded.methods}
        self.recent_batch_sizes: deque[int] = deque(maxlen=_RECENT_BATCHES)
        self.cancelled = 0
        self.batches = 0
        self.prompt_tokens = 0  # of texts
        self.failure: str | None = None  # errors end a request, never the model
        self.inside = 0  # requests that are prepared here, before and between their turns
        self.held = 0  # bytes of the host that these hold
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = RunnerThread(model_id, loaded.runner)
        self._batchers: dict[str, Batcher[Any, Any]] = {
            name: Batcher(
                loaded.runner.run,
                self._thread.worker,
                name=model_id,
                most=batching.most,
                wait_s=batching.wait_s,
                queue=batching.queue,
                group=loaded.runner.group,
                devices=loaded.devices,
                on_batch=self._count,
            )
            for name, batching in loaded.batching.items()
        }

    @property
    def running(self) -> int:
        """Items in the running batches."""
        return sum(batcher.running for batcher in self._batchers.values())

    @property
    def waiting(self) -> int:
        """Items that wait for a batch, and requests that are prepared."""
        return max(self.queued, self.inside - self.running)

    @property
    def queued(self) -> int:
        """Items that wait for a batch."""
        return sum(batcher.waiting for batcher in self._batchers.values())

    def part(self, kind: type[Other]) -> BatchServable[Other] | None:
        """Return what serves such a model; None: this is one of another kind."""
        return cast("BatchServable[Other]", self) if isinstance(self.loaded, kind) else None

    async def ask(self, item: Any, cost: BatchCost | None = None, queue: str = ONLY) -> Any:
        """Return an item's answer. Raises its own error, QueueFull, NotLoaded."""
        return await self._batchers[queue].ask(item, cost)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request in whose items are not all in a queue; an unload lets it end."""
        self.inside += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.inside -= 1
            if not self.inside:
                self._idle.set()

    async def close(self, drain_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + drain_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end_s):
                await self._idle.wait()
        await self._thread.close(list(self._batchers.values()), max(0.0, end_s - loop.time()))

    def _count(self, size: int) -> None:
        self.batches += 1
        self.recent_batch_sizes.append(size)
