"""The thread of a batched model's runner, from its first batch until its memory is free."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from model_server.batcher import Batcher
from model_server.worker import Worker

logger = logging.getLogger(__name__)

_LAST_BATCH_S = 5.0  # how long a batch may run past the drain time before it is abandoned


class Closable(Protocol):
    def close(self) -> None: ...


class RunnerThread:
    """Runs on the event loop, except for the runner's jobs."""

    def __init__(self, model_id: str, runner: Closable) -> None:
        self.worker = Worker(f"batches {model_id}")
        self._model_id = model_id
        self._runner = runner

    async def close(self, batchers: Sequence[Batcher[Any, Any]], drain_s: float) -> None:
        """Drain the queues, then free the runner after its last batch. Idempotent."""
        await asyncio.gather(*(batcher.close(drain_s) for batcher in batchers))
        freed = self.worker.run(self._runner.close)
        self.worker.stop()
        _, stuck = await asyncio.wait([freed], timeout=_LAST_BATCH_S)
        if stuck:
            logger.warning("a batch of %s does not end; its memory is not freed", self._model_id)
