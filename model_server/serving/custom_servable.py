"""A loaded custom model: one queue per method."""

from __future__ import annotations

from collections import deque
from functools import partial

from model_server.loading.loaded import LoadedCustom
from model_server.serving.batcher import Batcher, RunnerThread
from model_server.serving.method_stats import MethodStats
from model_server.serving.query_cost import BatchCost
from sax.activity import IDLE

_RECENT_BATCHES = 10


class CustomServable:
    """Runs on the event loop; batches of all methods run on one thread, in turn."""

    kind = "a custom model"
    note = ""
    kernels = ""
    activity = IDLE

    def __init__(self, model_id: str, loaded: LoadedCustom) -> None:
        self.model_id = model_id
        self.memory = loaded.memory
        self.parts = loaded.parts
        self.methods = {name: MethodStats() for name in loaded.batching}
        self.recent_batch_sizes: deque[int] = deque(maxlen=_RECENT_BATCHES)
        self.cancelled = 0
        self.batches = 0
        self.failure: str | None = None  # errors end a request, never the model
        self._thread = RunnerThread(model_id, loaded.runner)
        self._batchers: dict[str, Batcher[bytes, bytes]] = {
            name: Batcher(
                partial(loaded.runner.answer, name),
                self._thread.worker,
                name=model_id,
                most=batching.most,
                wait_s=batching.wait_s,
                queue=batching.queue,
                on_batch=self._count,
            )
            for name, batching in loaded.batching.items()
        }

    @property
    def running(self) -> int:
        return sum(batcher.running for batcher in self._batchers.values())

    @property
    def waiting(self) -> int:
        return sum(batcher.waiting for batcher in self._batchers.values())

    async def ask(self, method: str, request: bytes, cost: BatchCost | None = None) -> bytes:
        """Return the answer to a request. Raises the request's own error, QueueFull, NotLoaded."""
        return await self._batchers[method].ask(request, cost)

    async def close(self, drain_s: float) -> None:
        await self._thread.close(list(self._batchers.values()), drain_s)

    def _count(self, size: int) -> None:
        self.batches += 1
        self.recent_batch_sizes.append(size)
