"""The queue of texts whose loss is differentiated, batched by length, beside a model's engine."""

from __future__ import annotations

from model_server.loading.loaded import GradientInput, LoadedGradients
from model_server.serving.batcher import Batcher, RunnerThread
from model_server.serving.query_cost import BatchCost
from sax.types import Gradients

_WAIT_S = 0.002  # well below one step


class GradientQueue:
    """Runs on the event loop; batches run on one thread."""

    def __init__(self, model_id: str, loaded: LoadedGradients) -> None:
        self.max_context = loaded.max_context
        self._thread = RunnerThread(model_id, loaded.runner)
        self._batcher: Batcher[GradientInput, Gradients] = Batcher(
            loaded.runner.gradients,
            self._thread.worker,
            name=model_id,
            most=loaded.runner.batch,
            wait_s=_WAIT_S,
            queue=loaded.queue,
            group=lambda each: loaded.runner.length(len(each.ids)),
            devices=loaded.devices,
        )

    async def gradients(self, given: GradientInput, cost: BatchCost | None = None) -> Gradients:
        """Return the gradients of one text. Raises QueueFull, NotLoaded."""
        return await self._batcher.ask(given, cost)

    async def close(self, drain_s: float) -> None:
        await self._thread.close([self._batcher], drain_s)
