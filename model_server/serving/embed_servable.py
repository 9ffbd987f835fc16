"""A loaded model that embeds or classifies: one queue of inputs, batched by length."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from model_server.loading.loaded import LoadedEmbedder
from model_server.serving.batcher import Batcher, RunnerThread
from model_server.serving.method_stats import MethodStats
from model_server.serving.query_cost import BatchCost
from sax.activity import IDLE

Vector = list[float]

_RECENT_BATCHES = 10
_WAIT_S = 0.002  # well below one step
_BATCHES_AHEAD = 2  # queued per caller: keeps the device busy and the queue fair


class EmbedServable:
    """Runs on the event loop; batches run on one thread."""

    note = ""
    kernels = ""
    activity = IDLE

    def __init__(self, model_id: str, loaded: LoadedEmbedder) -> None:
        self.model_id = model_id
        self.loaded = loaded
        self.memory = loaded.memory
        self.parts = loaded.parts
        self.methods = {name: MethodStats() for name in loaded.methods}
        self.recent_batch_sizes: deque[int] = deque(maxlen=_RECENT_BATCHES)
        self.cancelled = 0
        self.batches = 0
        self.prompt_tokens = 0
        self.failure: str | None = None  # errors end a request, never the model
        self._ahead = min(_BATCHES_AHEAD * loaded.runner.batch, loaded.queue)
        self._thread = RunnerThread(model_id, loaded.runner)
        self._batcher: Batcher[Sequence[int], Vector] = Batcher(
            loaded.runner.embed,
            self._thread.worker,
            name=model_id,
            most=loaded.runner.batch,
            wait_s=_WAIT_S,
            queue=loaded.queue,
            group=lambda ids: loaded.runner.length(len(ids)),
            on_batch=self._count,
            devices=loaded.devices,
        )

    @property
    def kind(self) -> str:
        if not self.loaded.labels:
            return "an embedding model"
        return "a classification model" if "lm.classify" in self.methods else "a reranker"

    @property
    def running(self) -> int:
        """Inputs in the running batch."""
        return self._batcher.running

    @property
    def waiting(self) -> int:
        return self._batcher.waiting

    async def embed(
        self, inputs: Sequence[Sequence[int]], cost: BatchCost | None = None
    ) -> list[Vector]:
        """Return the vector of each input, in order. Raises QueueFull, NotLoaded."""
        room = asyncio.Semaphore(self._ahead)

        async def one(ids: Sequence[int]) -> Vector:
            async with room:
                vector = await self._batcher.ask(ids, cost)
            self.prompt_tokens += len(ids)
            return vector

        tasks = [asyncio.ensure_future(one(ids)) for ids in inputs]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def close(self, drain_s: float) -> None:
        await self._thread.close([self._batcher], drain_s)

    def _count(self, size: int) -> None:
        self.batches += 1
        self.recent_batch_sizes.append(size)
